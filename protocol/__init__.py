"""What is said: messages, their bytes, identities, certificates, channels, the run spec, errors. Start with `messages`."""
