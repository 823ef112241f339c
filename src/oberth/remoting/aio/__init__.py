"""The asyncio shell of the remoting protocol: server, client, and the channel that both share."""
