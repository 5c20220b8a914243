"""Settings: their types and meanings (`schema`), and the way from recipes and overrides to them (`load`)."""
