package task

import (
	"maps"
	"slices"
	"strings"
	"unicode/utf8"
)

// Secret is the metadata of a secret. It does not contain the values.
type Secret struct {
	Namespace  string   `json:"namespace"`
	Name       string   `json:"name"`
	Keys       []string `json:"keys" doc:"The names of its values, in order."`
	KeyID      string   `json:"key_id" doc:"The key of the nodes with which the values are encrypted."`
	Generation int64    `json:"generation" doc:"Grows by one with each write, even after a delete within the last week."`
	Change     string   `json:"change" doc:"The kind of the last write: set or rotated."`
	CreatedAt  Time     `json:"created_at"`
	UpdatedAt  Time     `json:"updated_at"`
	UpdatedBy  string   `json:"updated_by,omitempty"`
	Revision   int64    `json:"revision,omitempty" doc:"The value that If-Match compares."`
}

// The values of Secret.Change. The record of a deleted secret exists only so that a later secret of the same
// name continues with its generation.
const (
	SecretSet     = "set"
	SecretRotated = "rotated"
	SecretDeleted = "deleted"
)

// CheckSecret checks the values of a secret. Its errors contain names, and never a value.
func CheckSecret(field string, values map[string]string) error {
	switch {
	case len(values) == 0:
		return Invalid(CodeRequired, field, "is empty; a secret requires at least one value")
	case len(values) > MaxEnv:
		return Invalid(CodeTooMany, field, "has %d values; at most %d are allowed", len(values), MaxEnv)
	}

	size := 0
	for _, name := range slices.Sorted(maps.Keys(values)) {
		if err := CheckVariable(field, name); err != nil {
			return err
		}

		v := values[name]
		switch {
		case strings.ContainsRune(v, 0):
			return Invalid(CodeBadValue, field+"."+name, "contains a NUL byte, which no program can receive")
		case !utf8.ValidString(v):
			return Invalid(CodeBadValue, field+"."+name, "is not UTF-8; encode binary values as base64")
		}

		size += len(name) + len(v)
	}

	if size > MaxSecretValues {
		return Invalid(CodeTooLong, field, "is %d bytes long; at most %d are allowed", size, MaxSecretValues)
	}

	return nil
}
