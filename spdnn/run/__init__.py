"""From a network and features to a result: sessions, options, ranks, results."""
