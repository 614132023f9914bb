package record

import (
	"bytes"
	"errors"

	"github.com/go-faster/jx"

	"github.com/carillonhq/carillon/pkg/task"
)

// errSeen ends the decoding when the field has been found.
var errSeen = errors.New("seen")

// stateField is the field as a writer encodes it.
var stateField = []byte(`"state":"`)

// StateOf returns the state in the record of a run without decoding the rest, which is much
// faster. It returns an empty state if the record has none or cannot be read.
//
// In JSON, the text of stateField can only be the name of a field and the beginning of its
// value, because quotes inside of a text are escaped. The field belongs to the record itself,
// and not to a nested object, if no other object begins before it.
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

// stateOf is StateOf for records with another layout than that of a writer.
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
