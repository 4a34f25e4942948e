"""One issue that says how things stand: engines, runs, reviews that people owe, money, and when it last worked."""
