------------------------------- MODULE Resume -------------------------------
(* What an attempt does with what it finds: the table of protocol/resume.py,    *)
(* row by row. A test compares the two. A pair that cannot occur has no row, so *)
(* TLC stops with an error if the protocol ever gets there.                     *)
EXTENDS TLC

Resume ==
    (<<"new", "transactional">> :> "deliver") @@
    (<<"new", "sequenced">> :> "deliver") @@
    (<<"new", "repeatable">> :> "deliver") @@
    (<<"new", "probing">> :> "deliver") @@
    (<<"new", "opaque">> :> "deliver") @@
    (<<"complete", "transactional">> :> "count") @@
    (<<"complete", "sequenced">> :> "count") @@
    (<<"complete", "repeatable">> :> "count") @@
    (<<"complete", "probing">> :> "count") @@
    (<<"complete", "opaque">> :> "count") @@
    (<<"pending", "transactional">> :> "ask progress") @@
    (<<"pending", "sequenced">> :> "ask tail") @@
    (<<"pending", "repeatable">> :> "read spans") @@
    (<<"pending", "probing">> :> "read spans") @@
    (<<"pending", "opaque">> :> "read spans") @@
    (<<"settled", "repeatable">> :> "skip") @@
    (<<"settled", "probing">> :> "skip") @@
    (<<"settled", "opaque">> :> "skip") @@
    (<<"intended", "repeatable">> :> "repeat") @@
    (<<"intended", "probing">> :> "ask arrived") @@
    (<<"intended", "opaque">> :> "doubt") @@
    (<<"expired", "repeatable">> :> "doubt") @@
    (<<"unrecorded", "repeatable">> :> "deliver") @@
    (<<"unrecorded", "probing">> :> "deliver") @@
    (<<"unrecorded", "opaque">> :> "deliver")

\* The remedy for an event in doubt, by policy, and whether to wait before it
\* until no call of an earlier attempt can be in flight.
Remedy == ("hold" :> "park") @@ ("skip" :> "pass") @@ ("resend" :> "send")
Waits == ("hold" :> FALSE) @@ ("skip" :> FALSE) @@ ("resend" :> TRUE)
=============================================================================
