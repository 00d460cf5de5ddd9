"""The gateway: cameras in, answers out over MQTT. Needs the extra `mqtt`, and `camera` for real cameras."""
