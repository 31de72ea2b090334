------------------------------- MODULE Ledger -------------------------------
(* The store of three columns, and its one way to write: a commit is data, a     *)
(* list of requirements and a list of updates. Also the parameters and variables *)
(* of all modules.                                                               *)
EXTENDS Naturals, Integers, Sequences, FiniteSets, TLC, Resume

CONSTANTS
    Capability,   \* what the destination can do
    OnDoubt,      \* the policy for events in doubt
    Partitions,   \* the partitions of a minibatch
    Entities,     \* the entity of each event of a partition, in input order
    Cuts,         \* for each checkpoint, where its micro-batches end in the input
    ChunkRows, SpanChunks,
    Crashes,      \* how often a driver or a task is killed or paused, or a checkpoint is lost
    Losses,       \* how often a commit, or the reply to it, is lost or late
    Drops,        \* the same for calls to the destination
    Decisions,    \* how often a person decides about an event in doubt
    Forgets,      \* whether a REPEATABLE destination can forget its keys
    Bug,          \* the bug that is planted, or "none"
    None

VARIABLES
    ledger,       \* key -> payload: the rows that exist
    late,         \* commits on their way whose callers have given them up
    run,          \* the newest run of the query
    checkpoint,   \* the checkpoint it uses; a lost one is replaced by the next
    committed,    \* checkpoint -> its last micro-batch that Spark committed
    drivers,      \* run -> the state of its driver
    tasks,        \* partition -> slot -> the state of an attempt
    calls,        \* calls in flight to the destination
    dest,         \* partition -> what arrived, in order: the witness
    place,        \* partition -> progress row (T) or end of the log (S)
    keys,         \* keys of chunks that arrived (P)
    expired,      \* keys of spans whose events' keys the destination may forget (R)
    crashes, losses, drops, decisions \* what is left of them

world == <<calls, dest, place, keys, expired>>
vars == <<ledger, late, run, checkpoint, committed, drivers, tasks, world,
          crashes, losses, drops, decisions>>

Planted(bug) == Bug = bug
Intents == Capability \in {"repeatable", "probing", "opaque"}
\* Whether a take-over waits until the lease of the attempt before and its calls have ended.
WaitsFirst == Capability = "probing" \/ (Capability = "opaque" /\ Waits[OnDoubt])
Leases == WaitsFirst \/ Forgets
Slots == 1..(Crashes + 1)
Events == 1..Len(Entities)
Idle == [pc |-> "idle"]
Least(S) == CHOOSE x \in S : \A y \in S : x <= y
Greatest(S) == CHOOSE x \in S : \A y \in S : x >= y
Range(f) == {f[x] : x \in DOMAIN f}

-----------------------------------------------------------------------------
(* The keys of the tables. *)

OpenKey == <<"open">>
StreamKey(g, b, p) == <<"streams", g, b, p>>
SpanKey(g, b, p, n) == <<"events", g, b, p, n>>
SequenceKey(p) == <<"sequences", p>>
ParkedKey(p, e) == <<"parked", p, e>>
SlotKey == <<"owners">>

Row(key) == IF key \in DOMAIN ledger THEN ledger[key] ELSE None

(* A row of `sequences`: the standing of a partition now, and before the last two   *)
(* minibatches that moved it. L is `osn`; `mark` are the events that were handled.  *)
Start == [osn |-> 0, mark |-> {}]
Standing(p, serial) ==
    LET row == Row(SequenceKey(p))
        moved == IF row = None THEN {} ELSE {i \in DOMAIN row.before : serial <= row.before[i][1]}
    IN IF row = None THEN Start
       ELSE IF moved = {} THEN row.after ELSE row.before[Least(moved)][2]
Moved(p, serial, after) ==
    LET row == Row(SequenceKey(p))
        kept == IF row = None THEN <<>> ELSE SelectSeq(row.before, LAMBDA x : x[1] < serial)
        last == IF kept = <<>> THEN <<>> ELSE <<kept[Len(kept)]>>
    IN [after |-> after, before |-> Append(last, <<serial, Standing(p, serial)>>)]

(* Parked events, and the entities that they block: `heads` in the ledger. *)
State(p, e) == IF Row(ParkedKey(p, e)) = None THEN "none" ELSE Row(ParkedKey(p, e)).state
Final == {"none", "delivered", "discarded", "skipped", "resent"}
Blocked(p, e) == ~Planted("a doubt does not block its entity") /\
    \E x \in Events : Entities[x] = Entities[e] /\ x < e /\ State(p, x) \notin Final
Parked(state, doubted, osn) ==
    [state |-> state, doubted |-> doubted, again |-> FALSE, osn |-> osn]

-----------------------------------------------------------------------------
(* A commit. All its updates happen, or none; None deletes a row. *)

NoRows == <<>>
Commit(required, updates) == [req |-> required, upd |-> updates]
Passes(c) == \A key \in DOMAIN c.req : Row(key) = c.req[key]
Stands(c) == \A key \in DOMAIN c.upd : Row(key) = c.upd[key]
Applied(c) ==
    LET gone == {key \in DOMAIN c.upd : c.upd[key] = None}
    IN [key \in (DOMAIN ledger \cup DOMAIN c.upd) \ gone |->
           IF key \in DOMAIN c.upd THEN c.upd[key] ELSE ledger[key]]

(* The client of the ledger. `unknown` says that an earlier try of this very commit *)
(* got no reply; `Unknown` is what the caller does then: it tries again. A commit    *)
(* that meets a conflict after that looks whether its rows stand as it put them.     *)
Try(c, unknown, Done, Unknown, Conflict) ==
    LET mine == unknown /\ Stands(c) /\ ~Planted("a lost reply counts as a conflict")
    IN \/ Passes(c) /\ ledger' = Applied(c) /\ Done /\ UNCHANGED <<late, losses>>
       \/ ~Passes(c) /\ mine /\ Done /\ UNCHANGED <<ledger, late, losses>>
       \/ ~Passes(c) /\ ~mine /\ Conflict /\ UNCHANGED <<ledger, late, losses>>
       \/ /\ Passes(c) /\ ~unknown /\ losses > 0 /\ losses' = losses - 1 /\ Unknown
          /\ \/ ledger' = Applied(c) /\ UNCHANGED late           \* its reply is lost
             \/ late' = late \cup {c} /\ UNCHANGED ledger        \* it is late, or never comes

ArrivesLate ==
    \E c \in late :
        /\ late' = late \ {c}
        /\ ledger' = IF Passes(c) THEN Applied(c) ELSE ledger
        /\ UNCHANGED <<run, checkpoint, committed, drivers, tasks, world,
                       crashes, losses, drops, decisions>>
=============================================================================
