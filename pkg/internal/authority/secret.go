package authority

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/base32"
	"encoding/binary"
	"encoding/hex"
	"hash/crc32"
	"strings"

	"github.com/carillonhq/carillon/pkg/store/record"
	"github.com/carillonhq/carillon/pkg/task"
)

// A token's secret is carillon_ID_PART, where PART encodes tokenRandom random bytes and their
// CRC-32. The checksum is no protection: it tells a mistyped or truncated secret, and other junk,
// from one that is unknown, before anything is looked up. Secret scanners can use it, too.
const (
	tokenMark   = "carillon"
	tokenRandom = 20 // bytes: 160 bits
	idLetters   = 16
)

var tokenEncoding = base32.NewEncoding("abcdefghijklmnopqrstuvwxyz234567").WithPadding(base32.NoPadding)

// NewSecret returns a new secret, and the record of a token with it. The caller completes the
// record: at least its subject and when it was created.
func NewSecret() (secret string, t record.Token) {
	var b [tokenRandom + crc32.Size]byte
	rand.Read(b[:tokenRandom]) // crypto/rand never fails
	binary.BigEndian.PutUint32(b[tokenRandom:], crc32.ChecksumIEEE(b[:tokenRandom]))

	id, part := task.NewUID(), tokenEncoding.EncodeToString(b[:])
	hash := sha256.Sum256([]byte(part))
	t = record.Token{Token: task.Token{ID: id}, Hash: hex.EncodeToString(hash[:])}

	return tokenMark + "_" + id + "_" + part, t
}

// ParseSecret returns the id of a token and the hash of its secret part. It reports false if s
// is not the secret of any token, by its form. An id that it returns cannot lead to a key
// outside the prefix of tokens.
func ParseSecret(s string) (id string, hash [sha256.Size]byte, ok bool) {
	parts := strings.Split(s, "_")
	if len(parts) != 3 || parts[0] != tokenMark || len(parts[1]) != idLetters || len(s) > 256 {
		return "", hash, false
	}

	if strings.ContainsFunc(parts[1], func(r rune) bool { return (r < 'a' || r > 'z') && (r < '2' || r > '7') }) {
		return "", hash, false
	}

	b, err := tokenEncoding.DecodeString(parts[2])
	if err != nil || len(b) != tokenRandom+crc32.Size || binary.BigEndian.Uint32(b[tokenRandom:]) != crc32.ChecksumIEEE(b[:tokenRandom]) {
		return "", hash, false
	}

	return parts[1], sha256.Sum256([]byte(parts[2])), true
}
