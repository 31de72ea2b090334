-------------------------------- MODULE Task --------------------------------
(* One attempt at one partition of one minibatch, step by step: claim, take-over, *)
(* intent, effect, settle and report. Each step is one commit, one read, one call, *)
(* or the reply to a call, so an attempt can die or be paused between any two.     *)
EXTENDS Destination

Unchanged == UNCHANGED <<ledger, late, losses>>
Others == UNCHANGED <<run, checkpoint, committed, drivers, crashes, decisions>>
Set(p, k, a) == tasks' = [tasks EXCEPT ![p][k] = a]
Goes(a, pc) == [a EXCEPT !.pc = pc]

RunOf(no) == no \div 10
\* Attempts are ordered by run and then by number; 0 is the driver's own.
Number(r, n) == r * 10 + n

-----------------------------------------------------------------------------
(* Spans. *)

Min(x, y) == IF x < y THEN x ELSE y
ChunkCount(s) == (s.to - s.from) \div ChunkRows + 1
Chunk(s, i) == LET from == s.from + (i - 1) * ChunkRows
               IN <<from, Min(from + ChunkRows - 1, s.to)>>

(* A draft of the next span: events behind a blocked entity are parked, not sent. *)
Draft(p, a, n, from) ==
    LET to == Min(from + ChunkRows * SpanChunks - 1, Len(a.rows))
        evs == SubSeq(a.rows, from, to)
    IN [n |-> n, from |-> from, to |-> to, evs |-> evs, osn |-> a.osn + to,
        no |-> IF Planted("an intent does not name its attempt") THEN 0 ELSE a.no,
        state |-> "intended", handled |-> {e \in Range(evs) : Blocked(p, e)}]
Osn(a, e) == a.osn + (CHOOSE i \in DOMAIN a.rows : a.rows[i] = e)
Parks(p, a, events, state, doubted) ==
    [key \in {ParkedKey(p, e) : e \in events} |-> Parked(state, doubted, Osn(a, key[3]))]
SpanOf(p, a, n) == SpanKey(a.g, a.b, p, n)
Left(s) == {e \in Range(s.evs) : e \notin s.handled}
Settled(s) == [s EXCEPT !.state = "settled"]

(* What follows a span: those that an earlier attempt recorded, then new ones. *)
AfterSpan(p, a) ==
    IF a.resumed /\ Row(SpanOf(p, a, a.span.n + 1)) # None THEN Goes(a, "resume")
    ELSE Goes([a EXCEPT !.resumed = FALSE], IF a.span.to < Len(a.rows) THEN "write" ELSE "finish")
AfterChunk(p, a) ==
    IF a.at < ChunkCount(a.span)
    THEN [a EXCEPT !.at = @ + 1,
                   !.pc = IF a.resumed /\ Capability = "probing" THEN "probe" ELSE "send"]
    ELSE AfterSpan(p, a)
AfterProgress(a) == Goes(a, IF a.done < Len(a.rows) THEN "send" ELSE "finish")
Sending(a, s) == [a EXCEPT !.pc = "send", !.span = s, !.at = 1, !.unknown = FALSE]

-----------------------------------------------------------------------------
(* Claim: one commit inserts the row, with the first intent.                    *)

Claim(p, k) ==
    LET a == tasks[p][k]
        s == Draft(p, a, 1, 1)
        row == [state |-> "pending", no |-> a.no, osn |-> a.osn, g |-> a.g, b |-> a.b]
        begun == IF Planted("effect before intent") THEN NoRows
                 ELSE (SpanOf(p, a, 1) :> s) @@ Parks(p, a, s.handled, "waiting", FALSE)
        stands == IF Planted("claim without the row open") THEN NoRows ELSE OpenKey :> a.open
        c == Commit(stands @@ (StreamKey(a.g, a.b, p) :> None),
                    (StreamKey(a.g, a.b, p) :> row) @@ (IF Intents THEN begun ELSE NoRows))
        new == [a EXCEPT !.row = row, !.unknown = FALSE, !.lease = TRUE]
        \* A writer that is replaced may take the log at any time: fence at once (S).
        done == CASE Capability = "sequenced" -> Goes(new, "ask")
                  [] Capability = "transactional" -> AfterProgress(new)
                  [] OTHER -> Sending(new, s)
    IN /\ a.pc = "claim" /\ Resume[<<"new", Capability>>] = "deliver"
       /\ Try(c, a.unknown, Set(p, k, done), Set(p, k, [a EXCEPT !.unknown = TRUE]),
              Set(p, k, [Goes(a, "read") EXCEPT !.unknown = FALSE]))
       /\ UNCHANGED <<world, drops>> /\ Others

(* Take-over, step 1: look at the open minibatch and the row. *)
Read(p, k) ==
    LET a == tasks[p][k]
        row == Row(StreamKey(a.g, a.b, p))
    IN /\ a.pc = "read"
       /\ Set(p, k,
            IF Row(OpenKey) # a.open THEN Idle                      \* Fenced
            ELSE IF row = None THEN Goes(a, "claim")
            ELSE IF row.state = "complete" THEN
                IF Resume[<<"complete", Capability>>] = "count" THEN Goes(a, "report") ELSE Idle
            ELSE IF row.no > a.no THEN Idle                         \* Fenced
            ELSE [Goes(a, "seize") EXCEPT !.row = row, !.lease = TRUE])
       /\ Unchanged /\ UNCHANGED <<world, drops>> /\ Others

(* Take-over, step 2: write this attempt into the row. From this commit on, no earlier *)
(* attempt can record anything.                                                        *)
Seize(p, k) ==
    LET a == tasks[p][k]
        key == StreamKey(a.g, a.b, p)
        row == IF Planted("take-over without fencing") THEN a.row ELSE [a.row EXCEPT !.no = a.no]
        c == Commit((OpenKey :> a.open) @@ (key :> a.row), key :> row)
        found == Resume[<<"pending", Capability>>]
        taken == [a EXCEPT !.row = row, !.osn = row.osn, !.unknown = FALSE, !.resumed = TRUE,
                           !.span = [n |-> 0]]
    IN /\ a.pc = "seize" /\ ~Planted("a take-over refuses every pending row")
       /\ Try(c, a.unknown, Set(p, k, Goes(taken, IF found = "read spans" THEN "spans" ELSE "ask")),
              Set(p, k, [a EXCEPT !.unknown = TRUE]),
              Set(p, k, [Goes(a, "read") EXCEPT !.unknown = FALSE]))
       /\ UNCHANGED <<world, drops>> /\ Others

(* No earlier attempt may still act on its lease, and none of its calls is in flight. *)
Quiet(p, no) ==
    \/ Planted("a take-over does not wait")
    \/ /\ NoCalls(p, no)
       /\ \A k \in Slots : (tasks[p][k] # Idle /\ tasks[p][k].no < no) => ~tasks[p][k].lease

(* Take-over, step 3: read the spans, and wait if nothing fences earlier calls. *)
Spans(p, k) ==
    LET a == tasks[p][k]
        open == \E n \in 1..Len(a.rows) :
                   Row(SpanOf(p, a, n)) # None /\ Row(SpanOf(p, a, n)).state = "intended"
    IN /\ a.pc = "spans"
       /\ (open /\ WaitsFirst) => Quiet(p, a.no)
       /\ Set(p, k, Goes(a, "resume"))
       /\ Unchanged /\ UNCHANGED <<world, drops>> /\ Others

Forgotten(p, events) == (\E e \in events : <<p, e>> \in expired)
                        /\ ~Planted("a key is used after it may be forgotten")
Found(p, s) == IF Forgotten(p, Left(s)) THEN "expired" ELSE s.state

(* Resume: do with the next recorded span what the table says. *)
NextSpan(p, k) ==
    LET a == tasks[p][k]
        n == Least({x \in (a.span.n + 1)..(Len(a.rows) + 1) :
                      Row(SpanOf(p, a, x)) = None \/ Row(SpanOf(p, a, x)).state # "settled"})
        s == Row(SpanOf(p, a, n))
        action == IF s = None THEN Resume[<<"unrecorded", Capability>>]
                  ELSE Resume[<<Found(p, s), Capability>>]
        last == IF n = 1 THEN [n |-> 0, to |-> 0, state |-> "settled"] ELSE Row(SpanOf(p, a, n - 1))
    IN /\ a.pc = "resume"
       /\ Set(p, k,
            CASE action = "deliver" -> AfterSpan(p, [a EXCEPT !.span = last])
              [] action = "repeat" -> Sending(a, s)
              [] action = "ask arrived" -> [Sending(a, s) EXCEPT !.pc = "probe"]
              [] action = "doubt" /\ Planted("an intended span is sent again") -> Sending(a, s)
              [] action = "doubt" -> [a EXCEPT !.span = s, !.pc = "doubt"])
       /\ Unchanged /\ UNCHANGED <<world, drops>> /\ Others

(* Ask for a chunk's key; what arrived is not sent. *)
Probe(p, k) ==
    LET a == tasks[p][k]
    IN /\ a.pc = "probe"
       /\ Set(p, k, IF <<a.g, a.b, p, a.span.n, a.at>> \in keys THEN AfterChunk(p, a)
                    ELSE Goes(a, "send"))
       /\ Unchanged /\ UNCHANGED <<world, drops>> /\ Others

(* In doubt: the policy decides. What is parked is recorded in the very commit that *)
(* settles past it.                                                                 *)
Doubt(p, k) ==
    LET a == tasks[p][k]
        remedy == Remedy[OnDoubt]
        state == CASE remedy = "park" -> "held" [] remedy = "pass" -> "skipped"
                   [] remedy = "send" -> "resent"
        s == IF remedy = "send" THEN [a.span EXCEPT !.no = a.no] ELSE Settled(a.span)
        doubts == IF Planted("a doubt is not recorded") THEN NoRows
                  ELSE Parks(p, a, Left(a.span), state, TRUE)
        known == \A e \in Left(a.span) : State(p, e) = "resent"
        c == Commit((OpenKey :> a.open) @@ (StreamKey(a.g, a.b, p) :> a.row)
                        @@ (SpanOf(p, a, a.span.n) :> a.span),
                    (SpanOf(p, a, a.span.n) :> s) @@ (IF known THEN NoRows ELSE doubts))
        then == [a EXCEPT !.span = s, !.unknown = FALSE, !.lease = TRUE]
    IN /\ a.pc = "doubt"
       /\ Try(c, a.unknown, Set(p, k, IF remedy = "send" THEN Sending(then, s)
                                      ELSE AfterSpan(p, then)),
              Set(p, k, [a EXCEPT !.unknown = TRUE]), Set(p, k, Idle))
       /\ UNCHANGED <<world, drops>> /\ Others

-----------------------------------------------------------------------------
(* T and S: fence first, then ask how far the destination is.                   *)

Ask(p, k) ==
    LET a == tasks[p][k]
        at == place[p]
        same == at.g = a.g /\ at.b = a.b
        refused == Capability = "transactional" /\ (at.no > a.no \/ Before(a.g, a.b, at.g, at.b))
        done == IF Capability = "sequenced" THEN at.osn - a.osn ELSE IF same THEN at.done ELSE 0
        \* With the bug, what is left is numbered from the end of what arrived.
        osn == IF Planted("a replay gives other numbers") THEN a.osn + done ELSE a.osn
    IN /\ a.pc = "ask"
       /\ Set(p, k, IF refused THEN Idle
                    ELSE LET asked == [Goes(a, "check") EXCEPT !.done = done, !.osn = osn]
                         IN IF Capability = "sequenced" THEN asked ELSE AfterProgress(asked))
       /\ place' = IF refused THEN place ELSE [place EXCEPT ![p].no = a.no, ![p].try = a.try]
       /\ Unchanged /\ UNCHANGED <<calls, dest, keys, expired, drops>> /\ Others

(* Renew the lease, or find that another attempt or run has the partition. *)
Stays(p, a) == Row(OpenKey) = a.open /\ Row(StreamKey(a.g, a.b, p)) = a.row
Check(p, k) ==
    LET a == tasks[p][k]
        next == CASE a.pc = "check" -> AfterProgress(a)
                  [] a.pc = "recheck" -> Goes(a, "ask")
                  [] OTHER -> [a EXCEPT !.lease = TRUE]
    IN /\ a.pc \in {"check", "recheck"} \/ (a.pc = "send" /\ ~a.lease)
       /\ Set(p, k, IF Stays(p, a) THEN next ELSE Idle)
       /\ Unchanged /\ UNCHANGED <<world, drops>> /\ Others

-----------------------------------------------------------------------------
(* Effect: call the destination.                                                *)

CallFor(p, a) ==
    LET range == IF Intents THEN Chunk(a.span, a.at)
                 ELSE <<a.done + 1, Min(a.done + ChunkRows, Len(a.rows))>>
        all == [i \in 1..(range[2] - range[1] + 1) |->
                  [e |-> a.rows[range[1] + i - 1], osn |-> a.osn + range[1] + i - 1]]
        sent == IF Intents THEN SelectSeq(all, LAMBDA x : x.e \notin a.span.handled) ELSE all
    IN [p |-> p, no |-> a.no, g |-> a.g, b |-> a.b, events |-> sent,
        key |-> IF Intents THEN <<a.g, a.b, p, a.span.n, a.at>> ELSE <<>>, try |-> a.try,
        start |-> range[1] - 1, stop |-> range[2], osn |-> a.osn + range[2]]

Send(p, k) ==
    LET a == tasks[p][k]
        c == CallFor(p, a)
        \* A key that may be forgotten is not used again by the attempt that had no answer.
        forgotten == Forgotten(p, {c.events[i].e : i \in DOMAIN c.events})
    IN /\ a.pc = "send" /\ (Leases => a.lease)
       /\ IF c.events = <<>> THEN Set(p, k, AfterChunk(p, a)) /\ calls' = calls
          ELSE IF forgotten THEN Set(p, k, Goes(a, "doubt")) /\ calls' = calls
          ELSE Set(p, k, Goes(a, "called")) /\ calls' = calls \cup {c}
       /\ Unchanged /\ UNCHANGED <<dest, place, keys, expired, drops>> /\ Others

(* The answer that an attempt gets, if it still waits for one. *)
Waiting(c) == {k \in Slots : LET a == tasks[c.p][k]
                             IN a.pc = "called" /\ a.no = c.no /\ a.try = c.try}
Answered(p, a, c, accepted) ==
    IF ~accepted THEN Goes(a, "recheck")
    ELSE IF Intents THEN AfterChunk(p, a) ELSE AfterProgress([a EXCEPT !.done = c.stop])
Unanswered(a) ==
    [a EXCEPT !.try = @ + 1,
              !.pc = CASE Capability = "opaque" -> IF Waits[OnDoubt] THEN "quiet" ELSE "doubt"
                       [] Capability = "repeatable" -> "send"
                       [] Capability = "probing" -> "quiet"
                       [] OTHER -> "recheck"]
Replies(c, Reply(_)) ==
    LET waits == Waiting(c)
    IN IF waits = {} THEN tasks' = tasks
       ELSE LET k == Least(waits) IN Set(c.p, k, Reply(tasks[c.p][k]))

Arrives(c) ==
    LET accepted == Accepts(c)
    IN /\ c.key # <<"resend">>
       /\ calls' = calls \ {c}
       /\ IF accepted THEN Effect(c) ELSE NoEffect
       /\ \/ Replies(c, LAMBDA a : Answered(c.p, a, c, accepted)) /\ drops' = drops
          \/ /\ drops > 0 /\ Waiting(c) # {}                            \* its reply is lost
             /\ drops' = drops - 1 /\ Replies(c, Unanswered)
       /\ Unchanged /\ UNCHANGED expired /\ Others
Vanishes(c) ==                                                          \* it never arrives
    /\ drops > 0 /\ drops' = drops - 1 /\ c.key # <<"resend">>
    /\ calls' = calls \ {c} /\ NoEffect /\ Replies(c, Unanswered)
    /\ Unchanged /\ UNCHANGED expired /\ Others
TimesOut(p, k) ==                                                       \* it may still arrive
    LET a == tasks[p][k]
    IN /\ a.pc = "called" /\ drops > 0 /\ drops' = drops - 1
       /\ Set(p, k, Unanswered(a))
       /\ Unchanged /\ UNCHANGED world /\ Others

(* After the deadline the own call has ended: ask, or apply the policy. *)
OwnCallEnds(p, k) ==
    LET a == tasks[p][k]
    IN /\ a.pc = "quiet" /\ NoCalls(p, a.no + 1)
       /\ Set(p, k, Goes(a, IF Capability = "probing" THEN "probe" ELSE "doubt"))
       /\ Unchanged /\ UNCHANGED <<world, drops>> /\ Others

-----------------------------------------------------------------------------
(* Settle the last span and intend the next one, in one commit.                 *)

Write(p, k) ==
    LET a == tasks[p][k]
        s == Draft(p, a, a.span.n + 1, a.span.to + 1)
        last == SpanOf(p, a, a.span.n)
        had == a.span.n > 0 /\ ~Planted("effect before intent")
        required == (OpenKey :> a.open) @@ (StreamKey(a.g, a.b, p) :> a.row)
        before == IF had THEN last :> a.span ELSE NoRows
        settled == IF a.span.n > 0 THEN last :> Settled(a.span) ELSE NoRows
        begun == IF Planted("effect before intent") THEN NoRows
                 ELSE (SpanOf(p, a, s.n) :> s) @@ Parks(p, a, s.handled, "waiting", FALSE)
        c == Commit(IF Planted("a write requires nothing") THEN NoRows
                    ELSE required @@ before @@ (SpanOf(p, a, s.n) :> None), settled @@ begun)
    IN /\ a.pc = "write"
       /\ Try(c, a.unknown, Set(p, k, [Sending(a, s) EXCEPT !.lease = TRUE]),
              Set(p, k, [a EXCEPT !.unknown = TRUE]), Set(p, k, Idle))
       /\ UNCHANGED <<world, drops>> /\ Others

(* The end of the input: OPAQUE settles its last span; the others are settled by complete. *)
Finish(p, k) ==
    LET a == tasks[p][k]
        last == SpanOf(p, a, a.span.n)
        had == IF Planted("effect before intent") THEN NoRows ELSE last :> a.span
        c == Commit((OpenKey :> a.open) @@ (StreamKey(a.g, a.b, p) :> a.row) @@ had,
                    last :> Settled(a.span))
    IN /\ a.pc = "finish"
       /\ IF Capability = "opaque" /\ a.span.state = "intended"
          THEN Try(c, a.unknown, Set(p, k, Goes(a, "report")),
                   Set(p, k, [a EXCEPT !.unknown = TRUE]), Set(p, k, Idle))
          ELSE Set(p, k, Goes(a, "report")) /\ Unchanged
       /\ UNCHANGED <<world, drops>> /\ Others

(* Report: Spark hands it to the driver, if that still waits for one. *)
Report(p, k) ==
    LET a == tasks[p][k]
        r == RunOf(a.no)
        d == drivers[r]
        waits == d.pc = "tasks" /\ d.rep[p] = None /\ d.open = a.open
        report == [no |-> a.no, osn |-> a.osn + Len(a.rows), events |-> Range(a.rows)]
    IN /\ a.pc = "report"
       /\ Set(p, k, Idle)
       /\ drivers' = IF waits THEN [drivers EXCEPT ![r].rep[p] = report] ELSE drivers
       /\ Unchanged
       /\ UNCHANGED <<world, drops, run, checkpoint, committed, crashes, decisions>>

Step(p, k) ==
    \/ Claim(p, k) \/ Read(p, k) \/ Seize(p, k) \/ Spans(p, k) \/ NextSpan(p, k) \/ Probe(p, k)
    \/ Doubt(p, k) \/ Ask(p, k) \/ Check(p, k) \/ Send(p, k) \/ OwnCallEnds(p, k)
    \/ Write(p, k) \/ Finish(p, k) \/ Report(p, k)

(* Whether the driver of the newest run still counts on an attempt. *)
Current(p, a) ==
    /\ a # Idle /\ RunOf(a.no) = run
    /\ drivers[run].cur[p] = a.no /\ p \notin drivers[run].lost

(* The lease of an attempt that is paused ends. *)
LeaseEnds(p, k) ==
    /\ Leases /\ tasks[p][k] # Idle /\ tasks[p][k].lease /\ ~Current(p, tasks[p][k])
    /\ Set(p, k, [tasks[p][k] EXCEPT !.lease = FALSE])
    /\ Unchanged /\ UNCHANGED <<world, drops>> /\ Others
=============================================================================
