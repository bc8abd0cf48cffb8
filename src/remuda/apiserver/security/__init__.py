"""Who may speak to the server over TCP: its certificates, the bearer token, the guard in front of the app."""
