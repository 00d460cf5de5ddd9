"""Shape-real models: random weights with the exact dimensions of a named model, made locally, for timing.

    shapes, parameters        dimensions, and the names and shapes of what is learnt
    weights                   where values come from: random numbers, or arrays
    onnx_graph, idefics3_onnx   the ONNX files in the Hugging Face export layout
    gguf_file, idefics3_gguf, internvl3_gguf   the GGUF files that llama.cpp loads
    smollm2_tokenizer, filler_tokenizer, configuration   the JSON files beside them
    folder                    all of it together

The bundled model is exported by the same code.
"""
