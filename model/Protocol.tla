------------------------------- MODULE Protocol -------------------------------
(* Intent, effect, complete: the whole system, what can go wrong in it, and what   *)
(* must hold all the same. docs/model.md says how to read it.                       *)
EXTENDS Driver

Runs == 1..(2 * Crashes + 2 * Losses + 1)

Init ==
    /\ ledger = NoRows /\ late = {} /\ run = 1 /\ checkpoint = 1
    /\ committed = [q \in 1..Len(Cuts) |-> 0]
    /\ drivers = [r \in Runs |-> IF r = 1 THEN NewDriver(1) ELSE None]
    /\ tasks = [p \in Partitions |-> [k \in Slots |-> Idle]]
    /\ calls = {} /\ dest = [p \in Partitions |-> <<>>]
    /\ place = [p \in Partitions |-> [no |-> 0, try |-> 0, g |-> 0, b |-> 0, done |-> 0,
                                    osn |-> 0, ids |-> {}]]
    /\ keys = {} /\ expired = {}
    /\ crashes = Crashes /\ losses = Losses /\ drops = Drops /\ decisions = Decisions

-----------------------------------------------------------------------------
(* Crashes. Nothing is taken from a process that dies: it may be paused only, and    *)
(* every step that it takes later is the step of a zombie. One that takes none died. *)

TaskCrashes(p) ==
    LET d == drivers[run]
    IN /\ crashes > 0 /\ crashes' = crashes - 1
       /\ d.pc = "tasks" /\ d.rep[p] = None /\ p \notin d.lost
       /\ \E k \in Slots : tasks[p][k] # Idle /\ tasks[p][k].no = d.cur[p]
       /\ drivers' = [drivers EXCEPT ![run].lost = @ \cup {p}]
       /\ Unchanged /\ UNCHANGED <<run, checkpoint, committed, tasks, world, drops, decisions>>

\* The next run begins, with the checkpoint or without it.
Restarts(q) ==
    /\ run' = run + 1 /\ checkpoint' = q
    /\ drivers' = [drivers EXCEPT ![run + 1] = NewDriver(q)]
    /\ Unchanged /\ UNCHANGED <<committed, tasks, world, drops, decisions>>
Finished == committed[checkpoint] = Batches(checkpoint) /\ drivers[run].pc = "open"
DriverCrashes ==
    /\ crashes > 0 /\ ~Finished /\ drivers[run].pc # "dead" /\ crashes' = crashes - 1
    /\ Restarts(checkpoint)
CheckpointIsLost ==
    /\ crashes > 0 /\ checkpoint < Len(Cuts) /\ crashes' = crashes - 1 /\ Restarts(checkpoint + 1)
\* A query that stopped because it was fenced is started again.
StartsAgain == drivers[run].pc = "dead" /\ crashes' = crashes /\ Restarts(checkpoint)

-----------------------------------------------------------------------------

CallArrives == \E c \in calls : Arrives(c)
CallVanishes == \E c \in calls : Vanishes(c)
ResendReaches == \E c \in calls : ResendArrives(c)
LeasesEnd == \E p \in Partitions, k \in Slots : LeaseEnds(p, k)

(* What a process does by itself, and is never denied: all steps of the newest run, and *)
(* of the attempts that it counts on.                                                    *)
Progress ==
    \/ DriverStep(run) \/ StartsAgain
    \/ \E p \in Partitions : StartTask(run, p)
    \/ \E p \in Partitions, k \in Slots : Current(p, tasks[p][k]) /\ Step(p, k)
    \/ CallArrives \/ ResendReaches

(* All that can happen: any process takes a step, also a zombie, or something goes wrong. *)
Following ==
    \/ \E r \in Runs : DriverStep(r)
    \/ \E r \in Runs, p \in Partitions : StartTask(r, p)
    \/ \E p \in Partitions, k \in Slots : Step(p, k)
    \/ CallArrives \/ ResendReaches
    \/ StartsAgain \/ LeasesEnd \/ Expires \/ Decide
    \/ DriverCrashes \/ CheckpointIsLost \/ \E p \in Partitions : TaskCrashes(p)
    \/ ArrivesLate \/ CallVanishes
    \/ \E p \in Partitions, k \in Slots : TimesOut(p, k)
Spec == Init /\ [][Following]_vars /\ WF_vars(Progress) /\ WF_vars(LeasesEnd)

-----------------------------------------------------------------------------
(* What must hold.                                                              *)

Times(p, e) == Cardinality({i \in DOMAIN dest[p] : dest[p][i].e = e})
Recorded(p, e) == State(p, e) # "none"
SentAgain(p, e) == Recorded(p, e) /\ ledger[ParkedKey(p, e)].doubted
                   /\ (ledger[ParkedKey(p, e)].again \/ OnDoubt = "resend")

\* No event arrives twice, unless it was in doubt and a person or a policy sent it again.
NoEventTwice == \A p \in Partitions, e \in Events : Times(p, e) <= 1 \/ SentAgain(p, e)

\* What counts as handled has arrived, or the ledger has it as parked, in doubt or skipped.
NoSilentLoss ==
    \A p \in Partitions : LET row == Row(SequenceKey(p))
                          IN row # None => \A e \in row.after.mark : Has(p, e) \/ Recorded(p, e)

\* When the input has ended, all of it is handled.
NothingLeftOut ==
    Finished => \A p \in Partitions : \A e \in Events : Has(p, e) \/ Recorded(p, e)

\* The events of an entity arrive in their order, counted from the first time that each arrives.
First(p, e) == Least({i \in DOMAIN dest[p] : dest[p][i].e = e})
OrderWithinEntity ==
    OnDoubt = "skip" \/ \A p \in Partitions : \A x, y \in Events :
        (x < y /\ Entities[x] = Entities[y] /\ Has(p, y))
            => (Has(p, x) /\ First(p, x) < First(p, y)) \/ State(p, x) \in Final \ {"none", "resent"}

\* An event is in doubt only because of a crash, or of a call without an answer: one window each.
DoubtIsBounded ==
    \A p \in Partitions :
        Cardinality({e \in Events : Recorded(p, e) /\ ledger[ParkedKey(p, e)].doubted})
            <= IF Capability = "opaque" \/ expired # {}
               THEN ChunkRows * SpanChunks * (Crashes - crashes + Drops - drops) ELSE 0

\* An event has one number, whoever sends it, and a number has one event.
NumbersAreIdentical ==
    \A p \in Partitions :
        LET all == Range(dest[p]) \cup UNION {{[e |-> c.events[i].e, osn |-> c.events[i].osn,
                                                g |-> c.g, b |-> c.b] : i \in DOMAIN c.events}
                                              : c \in {x \in calls : x.p = p}}
        IN \A x, y \in all : (x.e = y.e /\ x.g = y.g) <=> (x.osn = y.osn /\ x.g = y.g)
NumbersHaveNoGap ==
    (Finished /\ (~Intents \/ checkpoint = 1)) =>
        \A p \in Partitions :
            {dest[p][i].osn : i \in DOMAIN dest[p]}
                \cup {ledger[ParkedKey(p, e)].osn : e \in {x \in Events : Recorded(p, x)}} = Events

\* However the bounded faults fall, the pipeline delivers all of its input.
NeverStuck == <>[]Finished
=============================================================================
