----------------------------- MODULE Destination -----------------------------
(* The destination: what it does with a call when it arrives, however late, and   *)
(* what it answers. It is the witness too: `dest` is all that ever arrived.        *)
EXTENDS Ledger

(* A call carries its events with their numbers, the attempt that sent it, its key,  *)
(* and for T and S the progress before (`start`) and after it (`stop`).              *)
Has(p, e) == \E i \in DOMAIN dest[p] : dest[p][i].e = e
Written(c, events) == [i \in 1..Len(events) |-> events[i] @@ ("g" :> c.g) @@ ("b" :> c.b)]
NewOnly(c) == SelectSeq(c.events, LAMBDA x : ~Has(c.p, x.e) \/ <<c.p, x.e>> \in expired)

\* The end of a minibatch is before another one.
Before(g, b, h, d) == g < h \/ (g = h /\ b < d)

(* TRANSACTIONAL: the progress row moves first, in the transaction of the effect. A row *)
(* that names a later attempt or minibatch, or more progress, refuses it.               *)
RowAccepts(c) ==
    LET at == place[c.p]
    IN /\ at.no <= c.no \/ Planted("the destination does not fence")
       /\ ~Before(c.g, c.b, at.g, at.b)
       /\ (at.g = c.g /\ at.b = c.b) => at.done <= c.start

(* SEQUENCED: only the session that took the log last can append. *)
LogAccepts(c) == (place[c.p].no = c.no /\ place[c.p].try = c.try) \/ Planted("the destination does not fence")

Accepts(c) ==
    CASE Capability = "transactional" -> RowAccepts(c)
      [] Capability = "sequenced" -> LogAccepts(c)
      [] OTHER -> TRUE

Moves(c) ==
    LET at == place[c.p]
        same == at.g = c.g /\ at.b = c.b
    IN [no |-> c.no, try |-> c.try, g |-> c.g, b |-> c.b, done |-> c.stop, osn |-> c.osn,
        ids |-> (IF same THEN at.ids ELSE {}) \cup {c.events[i].e : i \in DOMAIN c.events}]

Effect(c) ==
    LET events == IF Capability = "repeatable" THEN NewOnly(c) ELSE c.events
    IN /\ dest' = [dest EXCEPT ![c.p] = @ \o Written(c, events)]
       /\ place' = IF Intents THEN place ELSE [place EXCEPT ![c.p] = Moves(c)]
       /\ keys' = IF Capability = "probing" THEN keys \cup {c.key} ELSE keys

NoEffect == UNCHANGED <<dest, place, keys>>

\* No call of an attempt before `no` at partition p is in flight.
NoCalls(p, no) == \A c \in calls : c.p = p => c.no >= no

(* The keys of a span may be forgotten from now on. That time is far longer than lease *)
(* and deadline, so no call is in flight by then and no attempt acts on an old read.   *)
Expires ==
    /\ Forgets
    /\ \E key \in DOMAIN ledger :
         /\ key[1] = "events" /\ ledger[key].state = "intended"
         /\ \A c \in calls : c.p # key[4]
         /\ \A k \in Slots : tasks[key[4]][k] # Idle => ~tasks[key[4]][k].lease
         /\ LET them == {<<key[4], ledger[key].evs[i]>> : i \in DOMAIN ledger[key].evs}
            IN ~(them \subseteq expired) /\ expired' = expired \cup them
    /\ UNCHANGED <<ledger, late, run, checkpoint, committed, drivers, tasks, calls, dest,
                   place, keys, crashes, losses, drops, decisions>>
=============================================================================
