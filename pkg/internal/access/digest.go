package access

import (
	"crypto/sha256"
	"encoding/binary"
	"slices"
	"time"
)

// Digest stands for everything that a caller may do. Two callers have the same Digest only if the same requests are
// allowed to both, so what was read for one of them may be shown to the other. The zero Digest is that of callers whose
// credentials are not accepted.
type Digest [sha256.Size]byte

// Digest returns the Digest of a caller's rights at a time. Rights can end with time without a change of the table, and a
// caller asks for the Digest again to notice that.
func (t *Table) Digest(c Caller, now time.Time) Digest {
	if t.Fence == 0 || t.disabled[c.Subject] {
		return Digest{}
	}

	var scoped *compiledToken
	if c.Token != "" {
		if t.TokenProblem(c, now) != "" {
			return Digest{}
		}
		if token := t.tokens.get(c.Token); token.Scope != nil {
			scoped = token
		}
	}

	h := sha256.New()
	h.Write(encodeGrants(t.heldBy(c), now))

	// A token without a scope and one whose scope allows nothing differ.
	if scoped != nil {
		h.Write([]byte{1})
		h.Write(encodeGrants(t.scopeGrants(scoped), now))
	}

	return Digest(h.Sum(nil))
}

// encodeGrants encodes the grants that have not ended. Their order and duplicates do not matter. No two sets of grants
// have the same encoding, because all texts are preceded by their length.
func encodeGrants(grants []grant, now time.Time) []byte {
	var all []string
	for i := range grants {
		if grants[i].lasts(now) {
			all = append(all, string(grants[i].encode()))
		}
	}

	slices.Sort(all)
	all = slices.Compact(all)

	b := binary.AppendUvarint(nil, uint64(len(all)))
	for _, s := range all {
		b = appendText(b, s)
	}

	return b
}

// encode encodes what a grant allows, without its end.
func (g *grant) encode() []byte {
	var b []byte
	for _, verbs := range g.verbs {
		b = binary.BigEndian.AppendUint16(b, uint16(verbs))
	}

	b = appendBool(b, g.cluster)
	b = binary.AppendUvarint(b, uint64(len(g.where)))
	for _, p := range g.where {
		b = appendText(appendBool(b, p.prefix), p.text)
	}

	b = binary.AppendUvarint(b, uint64(len(g.labels)))
	for _, l := range g.labels {
		b = appendText(appendText(b, l.key), l.value)
	}

	return b
}

func appendText(b []byte, s string) []byte {
	return append(binary.AppendUvarint(b, uint64(len(s))), s...)
}

func appendBool(b []byte, v bool) []byte {
	if v {
		return append(b, 1)
	}
	return append(b, 0)
}
