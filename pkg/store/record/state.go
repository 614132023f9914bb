package record

import (
	"bytes"
	"errors"

	"github.com/go-faster/jx"

	"github.com/carillonhq/carillon/pkg/task"
)

// errSeen ends a reading that has what it wants.
var errSeen = errors.New("seen")

// stateField is how the records of this program have it.
var stateField = []byte(`"state":"`)

// StateOf is the state that a record of a run has, and nothing else of it: far less
// work than to read it all. Empty if it has none, or cannot be read.
//
// In JSON the text of stateField can be nothing but a field and the beginning of its
// value. It is the record's own unless an object began before it.
func StateOf(value []byte) (s task.State) {
	if i := bytes.Index(value, stateField); i > 0 && bytes.LastIndexByte(value[:i], '{') == 0 {
		rest := value[i+len(stateField):]

		for _, known := range knownStates {
			if n := len(known); len(rest) > n && rest[n] == '"' && string(rest[:n]) == string(known) {
				return known
			}
		}
	}

	return stateOf(value)
}

// stateOf is StateOf for records that another program may have written.
func stateOf(value []byte) (s task.State) {
	d := jx.GetDecoder()
	defer jx.PutDecoder(d)

	d.ResetBytes(value)
	r := reader{d: d}
	_ = d.ObjBytes(func(d *jx.Decoder, name []byte) error {
		if string(name) != "state" {
			return d.Skip()
		}
		if d.Next() != jx.String {
			return errSeen
		}

		readWord(&r, &s, knownStates)

		return errSeen
	})

	return s
}
