"""A reader on another host: it sees the owner's memory only by transfers, in rounds.

records    what host and native code tell each other: what is fetched, and the room for it
lines      from the words that a round needs to the rows of one transfer
rounds     the four rounds of a get, one function before and one after each transfer; `judging`: what copies of lines
           say; `fetches`: where the bytes go, and whether they are right
locations  where objects of other nodes lie, which saves two rounds
pulls      the owner's side of a put from another host
homes      which node is the home of a key; `first_asked`: which one a get asks first
nixl       all rounds in one call, over NIXL's C interface
"""
