// Checks a recorded history of a store for linearizability: whether its commits, reads and scans could have happened
// one at a time, each between its call and its reply. The history is read from the files named, or from stdin, as JSON
// lines. A line has the operation and `call` and `return`, in nanoseconds of one clock. A commit without a known
// outcome has no return: it may have happened at any time after its call, or never.
//
// The exit status is 0 if every round of the history is linearizable, 1 if one is not, 2 if the history cannot be read
// or the time was not enough to decide.
package main

import (
	"bufio"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"math"
	"os"
	"sort"
	"strings"
	"time"

	"github.com/anishathalye/porcupine"
)

// Operation is one line of the history. Rounds have no key in common, so each is checked by itself.
type Operation struct {
	Round        int               `json:"round"`
	Client       int               `json:"client"`
	Kind         string            `json:"kind"` // "commit", "read" or "scan"
	Call         int64             `json:"call"`
	Return       *int64            `json:"return"`
	Outcome      string            `json:"outcome"` // "ok", "conflict" or "unknown"
	Requirements []Requirement     `json:"requirements"`
	Updates      []Update          `json:"updates"`
	Keys         []string          `json:"keys"`
	Prefix       string            `json:"prefix"`
	Rows         map[string]string `json:"rows"` // what a read or a scan returned
}

// Requirement holds if the row has the payload; without one, if there is no row.
type Requirement struct {
	Key     string  `json:"key"`
	Payload *string `json:"payload"`
}

// Update is a put, a delete (no payload), or a sweep of every key with a prefix.
type Update struct {
	Key     string  `json:"key"`
	Payload *string `json:"payload"`
	Sweep   bool    `json:"sweep"`
}

// The state is the rows as one text, "key\x00payload\x00..." in the order of the keys: it is compared and kept often.
const separator = "\x00"

func rowsOf(state string) map[string]string {
	rows := map[string]string{}
	if state == "" {
		return rows
	}
	parts := strings.Split(state, separator)
	for at := 0; at+1 < len(parts); at += 2 {
		rows[parts[at]] = parts[at+1]
	}
	return rows
}

func textOf(rows map[string]string) string {
	keys := make([]string, 0, len(rows))
	for key := range rows {
		keys = append(keys, key)
	}
	sort.Strings(keys)
	var text strings.Builder
	for _, key := range keys {
		text.WriteString(key + separator + rows[key] + separator)
	}
	return text.String()
}

func holds(rows map[string]string, requirements []Requirement) bool {
	for _, each := range requirements {
		payload, there := rows[each.Key]
		if there != (each.Payload != nil) || there && payload != *each.Payload {
			return false
		}
	}
	return true
}

func applied(rows map[string]string, updates []Update) string {
	for _, each := range updates {
		switch {
		case each.Sweep:
			for key := range rows {
				if strings.HasPrefix(key, each.Key) {
					delete(rows, key)
				}
			}
		case each.Payload == nil:
			delete(rows, each.Key)
		default:
			rows[each.Key] = *each.Payload
		}
	}
	return textOf(rows)
}

func returned(rows map[string]string, operation Operation) bool {
	expected := map[string]string{}
	if operation.Kind == "scan" {
		for key, payload := range rows {
			if strings.HasPrefix(key, operation.Prefix) {
				expected[key] = payload
			}
		}
	} else {
		for _, key := range operation.Keys {
			if payload, there := rows[key]; there {
				expected[key] = payload
			}
		}
	}
	return textOf(expected) == textOf(operation.Rows)
}

// step is the sequential store: whether an operation with this outcome is possible in a state, and the state after it.
func step(state, input, _ any) (bool, any) {
	operation, rows := input.(Operation), rowsOf(state.(string))
	if operation.Kind != "commit" {
		return returned(rows, operation), state
	}
	passes := holds(rows, operation.Requirements)
	switch operation.Outcome {
	case "ok":
		if !passes {
			return false, state
		}
	case "conflict":
		return !passes, state
	default: // unknown: it is placed where it passes, or where it does nothing
		if !passes {
			return true, state
		}
	}
	return true, applied(rows, operation.Updates)
}

func model() porcupine.Model {
	return porcupine.Model{
		Partition: func(history []porcupine.Operation) [][]porcupine.Operation {
			rounds := map[int][]porcupine.Operation{}
			for _, each := range history {
				round := each.Input.(Operation).Round
				rounds[round] = append(rounds[round], each)
			}
			parts := make([][]porcupine.Operation, 0, len(rounds))
			for _, each := range rounds {
				parts = append(parts, each)
			}
			return parts
		},
		Init: func() any { return "" },
		Step: step,
		DescribeOperation: func(input, _ any) string {
			text, _ := json.Marshal(input)
			return string(text)
		},
	}
}

// read adds the operations of a history. A read without a reply says nothing, so it is left out.
func read(from io.Reader, history []porcupine.Operation) ([]porcupine.Operation, error) {
	lines := bufio.NewScanner(from)
	lines.Buffer(nil, 16<<20)
	for number := 1; lines.Scan(); number++ {
		var operation Operation
		parser := json.NewDecoder(strings.NewReader(lines.Text()))
		parser.DisallowUnknownFields()
		if err := parser.Decode(&operation); err != nil {
			return nil, fmt.Errorf("line %d is not an operation: %w", number, err)
		}
		known := operation.Outcome == "ok" || operation.Outcome == "conflict" && operation.Kind == "commit"
		if known != (operation.Return != nil) || !known && operation.Outcome != "unknown" {
			return nil, fmt.Errorf("line %d: the outcome %q and the return do not fit", number, operation.Outcome)
		}
		if operation.Kind != "commit" && operation.Kind != "read" && operation.Kind != "scan" {
			return nil, fmt.Errorf("line %d: unknown kind %q", number, operation.Kind)
		}
		end := int64(math.MaxInt64)
		if known {
			end = *operation.Return
		} else if operation.Kind != "commit" {
			continue
		}
		if end < operation.Call {
			return nil, fmt.Errorf("line %d returns before its call", number)
		}
		history = append(history, porcupine.Operation{
			ClientId: operation.Client, Input: operation, Call: operation.Call, Return: end,
		})
	}
	return history, lines.Err()
}

func fail(why any) {
	fmt.Fprintln(os.Stderr, why)
	os.Exit(2)
}

func main() {
	within := flag.Duration("within", 5*time.Minute, "how long to look before the answer is unknown")
	picture := flag.String("picture", "", "write the history as a page of HTML, with the longest part that is possible")
	flag.Parse()
	var history []porcupine.Operation
	var err error
	if flag.NArg() == 0 {
		history, err = read(os.Stdin, history)
	}
	for _, name := range flag.Args() {
		file, failed := os.Open(name)
		if failed != nil {
			fail(failed)
		}
		if history, err = read(file, history); err != nil {
			break
		}
		file.Close()
	}
	if err != nil {
		fail(err)
	}
	if len(history) == 0 {
		fail("the history has no operations")
	}
	counts := map[string]int{}
	rounds := map[int]bool{}
	for _, each := range history {
		operation := each.Input.(Operation)
		rounds[operation.Round] = true
		if operation.Kind == "commit" {
			counts[operation.Outcome]++
		} else {
			counts["read"]++
		}
	}
	began := time.Now()
	checked := model()
	result, found := porcupine.CheckOperationsVerbose(checked, history, *within)
	if *picture != "" {
		if err := porcupine.VisualizePath(checked, found, *picture); err != nil {
			fail(err)
		}
	}
	answers := map[porcupine.CheckResult]string{
		porcupine.Ok: "linearizable", porcupine.Illegal: "not linearizable", porcupine.Unknown: "unknown",
	}
	fmt.Printf("%s: %d rounds, %d commits passed, %d met a conflict, %d have no known outcome, %d reads; %.1f s\n",
		answers[result], len(rounds), counts["ok"], counts["conflict"], counts["unknown"], counts["read"],
		time.Since(began).Seconds())
	switch result {
	case porcupine.Illegal:
		os.Exit(1)
	case porcupine.Unknown:
		os.Exit(2)
	}
}
