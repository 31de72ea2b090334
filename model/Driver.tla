------------------------------- MODULE Driver -------------------------------
(* The driver of a run: open, close an older generation, start tasks, complete, and *)
(* send parked events again; and Spark's own commit of a micro-batch.               *)
EXTENDS Task

On(r, pc) == drivers[r] # None /\ drivers[r].pc = pc /\ drivers[r].sends = None
Sends(r, to) == drivers[r] # None /\ drivers[r].sends # None /\ drivers[r].sends.to \in to
DriverOthers == UNCHANGED <<run, checkpoint, committed, tasks, crashes, decisions, drops>>
Become(r, d) == drivers' = [drivers EXCEPT ![r] = d]
Silent == [no |-> 0, osn |-> 0, events |-> {}]
NoReports == [p \in Partitions |-> None]
Dead(d) == [d EXCEPT !.pc = "dead", !.rep = NoReports]

\* The micro-batch b of checkpoint q: where it begins and ends in the input.
Ends(q, b) == IF b = 0 THEN 0 ELSE Cuts[q][b]
Input(q, b) == [i \in 1..(Ends(q, b) - Ends(q, b - 1)) |-> Ends(q, b - 1) + i]
Batches(q) == Len(Cuts[q])

NewDriver(q) ==
    [pc |-> "open", q |-> q, batch |-> 0, open |-> None, standing |-> None, rep |-> NoReports,
     cur |-> [p \in Partitions |-> None], lost |-> {}, unknown |-> FALSE, sends |-> None]

-----------------------------------------------------------------------------
(* Open: the first commit of a minibatch. Every write of a task requires this row.   *)

\* The minibatch that follows, or None if a later run has the pipeline.
Next(r) ==
    LET d == drivers[r]
        batch == committed[d.q] + 1
        before == Row(OpenKey)
        fresh == [run |-> r, q |-> d.q, g |-> 1, b |-> batch, serial |-> 1, complete |-> FALSE,
                  version |-> 1]
    IN IF before = None THEN fresh
       ELSE IF before.run > r THEN None
       ELSE LET next == [fresh EXCEPT !.version = before.version + 1, !.g = before.g]
            IN IF before.q # d.q THEN [next EXCEPT !.g = before.g + 1, !.serial = before.serial + 1]
               ELSE [next EXCEPT !.serial = before.serial + (batch - before.b)]
\* The rows of the minibatch before the previous one are swept.
Swept(row) ==
    [key \in {x \in DOMAIN ledger : x[1] \in {"streams", "events"} /\ x[2] = row.g
                                     /\ x[3] = row.b - 2} |-> None]
Leftovers(row) == {key \in DOMAIN ledger : key[1] = "streams" /\ key[2] < row.g}
Standings(row) == [p \in Partitions |-> Standing(p, row.serial)]
Opened(d, row) ==
    [d EXCEPT !.pc = IF Leftovers(row) = {} THEN "tasks" ELSE "close", !.open = row,
              !.batch = row.b, !.rep = NoReports, !.unknown = FALSE, !.lost = {},
              !.standing = Standings(row)]

Open(r) ==
    LET d == drivers[r]
        row == Next(r)
        c == Commit(OpenKey :> Row(OpenKey), Swept(row) @@ (OpenKey :> row))
        again == d.unknown /\ Row(OpenKey) # None /\ Row(OpenKey).run = r
                 /\ Row(OpenKey).b = committed[d.q] + 1 /\ ~Row(OpenKey).complete
    IN /\ On(r, "open") /\ committed[d.q] < Batches(d.q)
       /\ IF row = None THEN Become(r, Dead(d)) /\ Unchanged
          \* Its own row: the reply of an earlier try was lost.
          ELSE IF again THEN Become(r, Opened(d, Row(OpenKey))) /\ Unchanged
          ELSE Try(c, FALSE, Become(r, Opened(d, row)), Become(r, [d EXCEPT !.unknown = TRUE]),
                   FALSE)
       /\ UNCHANGED world /\ DriverOthers

-----------------------------------------------------------------------------
(* Close an older generation: what was handled in its pending partitions goes into   *)
(* the standing, because the input comes again in other pieces.                      *)

Taken(key, r) == ledger[key].state = "complete" \/ ledger[key].no = Number(r, 0)

\* Take over each row first, then read its spans.
TakeLeftover(r) ==
    LET d == drivers[r]
        left == {key \in Leftovers(d.open) : ~Taken(key, r)}
        key == CHOOSE x \in left : TRUE
        c == Commit((OpenKey :> d.open) @@ (key :> ledger[key]),
                    key :> [ledger[key] EXCEPT !.no = Number(r, 0)])
    IN /\ On(r, "close") /\ left # {}
       /\ IF Row(OpenKey) # d.open THEN Become(r, Dead(d)) /\ Unchanged
          ELSE Try(c, FALSE, Become(r, d), Become(r, d), Become(r, Dead(d)))
       /\ UNCHANGED world /\ DriverOthers

\* What is known of a partition that no attempt will finish.
SpansOf(key) == {x \in DOMAIN ledger : x[1] = "events" /\ SubSeq(x, 2, 4) = SubSeq(key, 2, 4)}
SettledIds(key) == UNION {Range(ledger[x].evs) : x \in {y \in SpansOf(key) :
                                                           ledger[y].state = "settled"}}
OpenSpans(key) == {ledger[x] : x \in {y \in SpansOf(key) : ledger[y].state = "intended"}}
ArrivedIds(key) ==
    {e \in UNION {Range(s.evs) : s \in OpenSpans(key)} :
        \E s \in OpenSpans(key) : \E i \in 1..ChunkCount(s) :
           /\ <<key[2], key[3], key[4], s.n, i>> \in keys
           /\ \E x \in (Chunk(s, i)[1] - s.from + 1)..(Chunk(s, i)[2] - s.from + 1) : s.evs[x] = e}
Unsettled(key) == UNION {Left(s) : s \in OpenSpans(key)}
Doubtful(key) ==
    CASE Capability = "opaque" -> Unsettled(key)
      [] Capability = "repeatable" -> IF \E e \in Unsettled(key) : <<key[4], e>> \in expired
                                      THEN Unsettled(key) ELSE {}
      [] OTHER -> {}
ParkedOf(key) ==
    {e \in Events : State(key[4], e) \notin {"none", "resent"}
                    /\ ledger[ParkedKey(key[4], e)].osn > ledger[key].osn}
Handled(key, r) ==
    LET p == key[4]
        at == place[p]
        same == at.g = key[2] /\ at.b = key[3]
        spans == IF SpansOf(key) = {} THEN {} ELSE {ledger[x].osn : x \in SpansOf(key)}
    IN IF Intents
       THEN [ids |-> SettledIds(key) \cup ParkedOf(key)
                        \cup (IF Capability = "probing" THEN ArrivedIds(key) ELSE {}),
             osn |-> Greatest(spans \cup {ledger[key].osn})]
       ELSE [ids |-> IF same THEN at.ids ELSE {},
             osn |-> IF same THEN at.osn ELSE ledger[key].osn]

\* Fence the destination, ask, and fold the partition into its standing in one commit.
CloseLeftover(r) ==
    LET d == drivers[r]
        key == CHOOSE x \in Leftovers(d.open) : TRUE
        p == key[4]
        row == ledger[key]
        handled == Handled(key, r)
        doubtful == Doubtful(key)
        remedy == Remedy[OnDoubt]
        state == CASE remedy = "park" -> "held" [] remedy = "pass" -> "skipped" [] OTHER -> "resent"
        kept == handled.ids \cup (IF remedy = "send" THEN {} ELSE doubtful)
        before == Standing(p, d.open.serial)
        after == [osn |-> Greatest({before.osn, handled.osn}),
                  mark |-> IF Planted("the watermark is forgotten") THEN before.mark
                           ELSE before.mark \cup kept]
        doubts == [x \in {ParkedKey(p, e) : e \in doubtful} |-> Parked(state, TRUE, after.osn)]
        gone == [x \in SpansOf(key) \cup {key} |-> None]
        moved == IF row.state = "complete" THEN NoRows
                 ELSE doubts @@ (SequenceKey(p) :> Moved(p, d.open.serial - 1, after))
        c == Commit((OpenKey :> d.open) @@ (key :> row), gone @@ moved)
    IN /\ On(r, "close") /\ Leftovers(d.open) # {} /\ \A x \in Leftovers(d.open) : Taken(x, r)
       /\ (Intents /\ WaitsFirst /\ row.state = "pending") => Quiet(p, Number(r, 0))
       /\ place' = IF Intents \/ row.state = "complete" THEN place
                   ELSE [place EXCEPT ![p].no = Number(r, 0)]
       /\ IF Row(OpenKey) # d.open \/ (~Intents /\ place[p].no > Number(r, 0))
          THEN Become(r, Dead(d)) /\ Unchanged
          ELSE Try(c, FALSE, Become(r, d), Become(r, d), Become(r, Dead(d)))
       /\ UNCHANGED <<calls, dest, keys, expired>> /\ DriverOthers

ClosedAll(r) ==
    LET d == drivers[r]
    IN /\ On(r, "close") /\ Leftovers(d.open) = {}
       /\ Become(r, [d EXCEPT !.pc = "tasks", !.standing = Standings(d.open)])
       /\ Unchanged /\ UNCHANGED world /\ DriverOthers

-----------------------------------------------------------------------------
(* Tasks, and the second commit.                                                *)

\* Spark starts a task for a partition, again if the one before failed or was lost. Events that
\* were handled before a lost checkpoint are skipped; a partition without others is silent.
StartTask(r, p) ==
    LET d == drivers[r]
        rows == SelectSeq(Input(d.q, d.batch), LAMBDA e : e \notin d.standing[p].mark)
        runs == \E k \in Slots : tasks[p][k] # Idle /\ tasks[p][k].no = d.cur[p]
        free == {k \in Slots : tasks[p][k] = Idle}
        no == IF d.cur[p] = None THEN Number(r, 1) ELSE d.cur[p] + 1
        a == [pc |-> "claim", no |-> no, g |-> d.open.g, b |-> d.open.b, open |-> d.open,
              osn |-> d.standing[p].osn, rows |-> rows, row |-> None, span |-> None, at |-> 0,
              done |-> 0, try |-> 0, resumed |-> FALSE, unknown |-> FALSE, lease |-> TRUE]
    IN /\ r = run /\ On(r, "tasks") /\ d.rep[p] = None /\ (~runs \/ p \in d.lost)
       /\ IF rows = <<>>
          THEN Become(r, [d EXCEPT !.rep[p] = Silent]) /\ tasks' = tasks
          ELSE /\ free # {} /\ Set(p, Least(free), a)
               /\ Become(r, [d EXCEPT !.cur[p] = no, !.lost = @ \ {p}])
       /\ Unchanged
       /\ UNCHANGED <<world, run, checkpoint, committed, crashes, decisions, drops>>

\* Complete, in one commit, from the reports that Spark handed over. `open` is marked complete in
\* it, so that a late copy of it, or of any write of a task, meets a conflict.
Complete(r) ==
    LET d == drivers[r]
        reported == {p \in Partitions : d.rep[p] \notin {None, Silent}}
        row(p) == Row(StreamKey(d.open.g, d.open.b, p))
        pending == {p \in Partitions : row(p) # None /\ row(p).state = "pending"}
        fits == \A p \in pending : p \in reported /\ d.rep[p].no = row(p).no
        there == \A p \in reported : row(p) # None
        early == Planted("complete before every partition")
        done == [d.open EXCEPT !.complete = TRUE, !.version = @ + 1]
        after(p) ==
            IF Planted("complete is not idempotent")
            THEN [osn |-> Standing(p, d.open.serial + 1).osn + (d.rep[p].osn - row(p).osn),
                  mark |-> d.standing[p].mark \cup d.rep[p].events]
            ELSE [osn |-> d.rep[p].osn, mark |-> d.standing[p].mark \cup d.rep[p].events]
        now == IF early THEN pending \cap reported
               ELSE IF Planted("complete is not idempotent") THEN reported ELSE pending
        required == IF Planted("complete is not idempotent") THEN NoRows
                    ELSE (OpenKey :> d.open)
                         @@ [key \in {StreamKey(d.open.g, d.open.b, p) : p \in now} |-> Row(key)]
        c == Commit(required, (OpenKey :> done)
                @@ [key \in {StreamKey(d.open.g, d.open.b, p) : p \in now} |->
                       [Row(key) EXCEPT !.state = "complete"]]
                @@ [key \in {SequenceKey(p) : p \in now} |->
                       Moved(key[2], d.open.serial, after(key[2]))])
        then == [d EXCEPT !.pc = "commit", !.unknown = FALSE, !.rep = NoReports]
    IN /\ On(r, "tasks")
       /\ (\A p \in Partitions : d.rep[p] # None) \/ (early /\ reported # {})
       /\ IF Row(OpenKey) = done /\ ~Planted("complete is not idempotent")
          THEN Become(r, then) /\ Unchanged             \* its own, and the reply was lost
          ELSE IF (~fits /\ ~early) \/ ~there THEN Become(r, Dead(d)) /\ Unchanged
          ELSE Try(c, FALSE, Become(r, then), Become(r, [d EXCEPT !.unknown = TRUE]),
                   Become(r, Dead(d)))
       /\ UNCHANGED world /\ DriverOthers

SparkCommits(r) ==
    LET d == drivers[r]
    IN /\ On(r, "commit")
       /\ committed' = [committed EXCEPT ![d.q] = Greatest({@, d.batch})]
       /\ Become(r, [d EXCEPT !.pc = "open"])
       /\ Unchanged
       /\ UNCHANGED <<world, run, checkpoint, tasks, crashes, decisions, drops>>

-----------------------------------------------------------------------------
(* Between two minibatches: an event that a person released, or that waited behind   *)
(* one that is decided, is sent. Its row and a slot fence it, not `open`.            *)

Free == {<<p, e>> \in Partitions \X Events :
            State(p, e) \in {"resend", "waiting"} /\ ~Blocked(p, e)}
Slot == IF Row(SlotKey) = None THEN [token |-> 0, current |-> None, run |-> 0] ELSE Row(SlotKey)

ClaimResend(r) ==
    LET d == drivers[r]
        it == IF Slot.current # None THEN Slot.current ELSE CHOOSE x \in Free : TRUE
        key == ParkedKey(it[1], it[2])
        row == [ledger[key] EXCEPT !.state = "sending"]
        slot == [token |-> Slot.token + 1, current |-> it, run |-> r]
        c == Commit((key :> ledger[key]) @@ (SlotKey :> Row(SlotKey)),
                    (key :> row) @@ (SlotKey :> slot))
        \* One that is found claimed may have been sent by a sender that died: it is held again.
        sends == [it |-> it, row |-> row, slot |-> slot,
                  to |-> IF ledger[key].state = "sending" THEN "held" ELSE "sent"]
    IN /\ On(r, "open") /\ r = run
       /\ Slot.current # None \/ Free # {}
       /\ Passes(c) /\ ledger' = Applied(c) /\ Become(r, [d EXCEPT !.sends = sends])
       /\ UNCHANGED <<late, losses>>
       /\ UNCHANGED world /\ DriverOthers

SendAgain(r) ==
    LET d == drivers[r]
        it == d.sends.it
        c == [p |-> it[1], no |-> Number(r, 9), g |-> 0, b |-> 0, key |-> <<"resend">>, try |-> 0, start |-> 0,
              stop |-> 0, osn |-> 0, events |-> <<[e |-> it[2], osn |-> d.sends.row.osn]>>]
    IN /\ Sends(r, {"sent"})
       /\ calls' = calls \cup {c}
       /\ Become(r, [d EXCEPT !.sends.to = "called"])
       /\ Unchanged /\ UNCHANGED <<dest, place, keys, expired>> /\ DriverOthers

ResendArrives(c) ==
    LET d == drivers[RunOf(c.no)]
        waits == d.sends # None /\ d.sends.to = "called"
        Hears(state) == drivers' = IF waits THEN [drivers EXCEPT ![RunOf(c.no)].sends.to = state]
                                   ELSE drivers
    IN /\ c.key = <<"resend">> /\ calls' = calls \ {c}
       /\ \/ Effect(c) /\ Hears("delivered") /\ drops' = drops
          \/ drops > 0 /\ drops' = drops - 1 /\ Effect(c) /\ Hears("held")
          \/ drops > 0 /\ drops' = drops - 1 /\ NoEffect /\ Hears("held")
       /\ Unchanged
       /\ UNCHANGED <<expired, run, checkpoint, committed, tasks, crashes, decisions>>

SettleResend(r) ==
    LET d == drivers[r]
        key == ParkedKey(d.sends.it[1], d.sends.it[2])
        doubted == d.sends.row.doubted \/ d.sends.to = "held"
        c == Commit((key :> d.sends.row) @@ (SlotKey :> d.sends.slot),
                    (key :> [d.sends.row EXCEPT !.state = d.sends.to, !.doubted = doubted])
                        @@ (SlotKey :> [d.sends.slot EXCEPT !.current = None]))
    IN /\ Sends(r, {"held", "delivered"})
       /\ Try(c, d.unknown, Become(r, [d EXCEPT !.sends = None, !.unknown = FALSE]),
              Become(r, [d EXCEPT !.unknown = TRUE]), Become(r, Dead([d EXCEPT !.sends = None])))
       /\ UNCHANGED world /\ DriverOthers

(* A person decides, and is right: says `delivered` only of what arrived, and `discard` *)
(* only of what did not and cannot any more.                                             *)
Decide ==
    /\ decisions > 0 /\ decisions' = decisions - 1
    /\ \E p \in Partitions, e \in Events :
         /\ State(p, e) = "held"
         /\ \E state \in {"resend"} \cup (IF Has(p, e) THEN {"delivered"} ELSE {})
                \cup (IF ~Has(p, e) /\ (\A c \in calls : c.p # p) /\ (\A k \in Slots :
                          tasks[p][k] = Idle) THEN {"discarded"} ELSE {}) :
              LET row == ledger[ParkedKey(p, e)]
              IN ledger' = [ledger EXCEPT ![ParkedKey(p, e)] =
                              [row EXCEPT !.state = state, !.again = @ \/ state = "resend"]]
    /\ UNCHANGED <<late, losses, run, checkpoint, committed, drivers, tasks, world, crashes, drops>>

DriverStep(r) ==
    \/ Open(r) \/ TakeLeftover(r) \/ CloseLeftover(r) \/ ClosedAll(r) \/ Complete(r)
    \/ SparkCommits(r) \/ ClaimResend(r) \/ SendAgain(r) \/ SettleResend(r)
=============================================================================
