"""Questions and answers over MQTT: the wire, the link to the broker, and the client. Needs the extra `mqtt`."""
