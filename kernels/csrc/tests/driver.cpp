// Runs the kernels without Python: under sanitizers, and emulated. What does not hold ends it with status 1.

#include <string.h>

#include "check.h"

using namespace edge_vl_driver;

int main(int num_arguments, char **arguments) {
    const char *command = num_arguments > 1 ? arguments[1] : "";
    if (!strcmp(command, "pool") && num_arguments == 3) {
        return test_pool(strtoull(arguments[2], nullptr, 10));
    }
    if (!strcmp(command, "kv") && num_arguments == 4) {
        return test_kv(strtoull(arguments[2], nullptr, 10), strtod(arguments[3], nullptr));
    }
    if (!strcmp(command, "replay") && num_arguments == 3) {
        return replay(arguments[2]);
    }
    fprintf(stderr, "usage: %s pool SEED | kv SEED SECONDS | replay FILE\n", arguments[0]);
    return 2;
}
