package backup

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/carillonhq/carillon/pkg/store/record"
	"github.com/carillonhq/carillon/pkg/task"
)

// ManifestVersion is the newest version of manifests that this version of Carillon understands.
const ManifestVersion = 1

// DefaultPrefix is the prefix of Carillon's keys in etcd unless another one is configured.
const DefaultPrefix = record.DefaultPrefix

// maxManifest is the maximum size of a manifest. One with a thousand nodes has about 100 kB.
const maxManifest = 4 << 20

// ErrDamaged means that a backup is not what was stored: a part is missing, or has other content.
var ErrDamaged = errors.New("damaged")

// ErrNewer means that a newer version of Carillon has made a backup in a way that this version does not understand.
var ErrNewer = errors.New("made by a newer version of Carillon")

// Where a snapshot comes from.
const (
	SourceAPI     = "api"      // GET /v1/cluster/backup
	SourceEtcd    = "etcd"     // carillon backup create --etcd
	SourceDataDir = "data-dir" // carillon backup create --data-dir: the member was stopped
)

// Manifest describes a backup.
type Manifest struct {
	Version int       `json:"manifest"` // ManifestVersion
	ID      string    `json:"id"`       // FormatID of Time
	Time    task.Time `json:"time"`     // when the backup was made, read before the snapshot was requested
	Source  string    `json:"source"`   // where the snapshot comes from

	Cluster        string `json:"cluster"`                   // the cluster's id
	Epoch          int    `json:"epoch"`                     // the epoch of the cluster
	Format         int    `json:"format"`                    // the record format; at least 1
	Carillon       string `json:"carillon"`                  // the version of Carillon that made the backup
	StorageVersion string `json:"storage_version,omitempty"` // the storage version of etcd, such as 3.6.0; empty before etcd 3.6
	ClusterVersion string `json:"cluster_version,omitempty"` // the cluster version of etcd
	Prefix         string `json:"prefix"`                    // of Carillon's keys in etcd
	Revision       int64  `json:"revision"`                  // etcd's revision
	RaftTerm       int64  `json:"raft_term,omitempty"`       // of a stopped member: that of the last entry of its log

	Size         int64  `json:"size"`          // of the snapshot, in bytes
	SHA256       string `json:"sha256"`        // of the snapshot; identifies the backup, however it is compressed
	PackedSize   int64  `json:"packed_size"`   // of the compressed snapshot, in bytes
	PackedSHA256 string `json:"packed_sha256"` // of the compressed snapshot

	Counts  map[string]int64 `json:"counts"`            // how many keys of each kind there are below the prefix (record.Keys.KeyKind)
	Other   int64            `json:"other,omitempty"`   // how many keys are outside the prefix
	Nodes   []Node           `json:"nodes,omitempty"`   // those that were present
	Keys    []string         `json:"secret_keys"`       // the IDs of the keys that encrypt its secrets
	Users   bool             `json:"users,omitempty"`   // etcd had authentication turned on
	Unknown []string         `json:"unknown,omitempty"` // kinds of keys that the version Carillon does not know
}

// Node is a node that was present when a backup was made.
type Node struct {
	Name    string `json:"name"`
	Address string `json:"address,omitempty"`
}

// idLayout is the form of an ID.
const idLayout = "20060102T150405.000Z"

// FormatID returns the ID of a backup that was made at t.
func FormatID(t time.Time) string { return t.UTC().Format(idLayout) }

// ParseID returns the time of an ID, or false if it is not an ID.
func ParseID(id string) (time.Time, bool) {
	t, err := time.Parse(idLayout, id)
	return t, err == nil && FormatID(t) == id
}

// IsID reports whether a text is an ID.
func IsID(id string) bool {
	_, ok := ParseID(id)
	return ok
}

// checksumField separates the fields of a manifest from its checksum, which is the last field.
const checksumField = ",\n  \"checksum\": \""

// Encode returns the JSON of the manifest. Its last field is the SHA-256 of everything before it.
func (m *Manifest) Encode() ([]byte, error) {
	text, err := json.MarshalIndent(m, "", "  ")
	if err != nil {
		return nil, fmt.Errorf("encode the manifest: %w", err)
	}

	text = bytes.TrimSuffix(text, []byte("\n}"))
	sum := sha256.Sum256(text)

	text = append(text, checksumField...)
	text = hex.AppendEncode(text, sum[:])

	return append(text, "\"\n}\n"...), nil
}

// ParseManifest decodes a manifest and checks it. Its errors wrap ErrDamaged or ErrNewer.
func ParseManifest(text []byte) (*Manifest, error) {
	if len(text) > maxManifest {
		return nil, fmt.Errorf("%w: its manifest has %d bytes, the maximum is %d", ErrDamaged, len(text), maxManifest)
	}

	at := bytes.LastIndex(text, []byte(checksumField))
	if at < 0 {
		return nil, fmt.Errorf("%w: its manifest is incomplete: it has no checksum", ErrDamaged)
	}

	sum := sha256.Sum256(text[:at])
	if string(text[at:]) != checksumField+hex.EncodeToString(sum[:])+"\"\n}\n" {
		return nil, fmt.Errorf("%w: its manifest does not have its own checksum", ErrDamaged)
	}

	var m Manifest
	// Decode only what the checksum covers.
	if err := json.Unmarshal(append(text[:at:at], '}'), &m); err != nil {
		return nil, fmt.Errorf("%w: its manifest cannot be read: %v", ErrDamaged, err)
	}

	if m.Version > ManifestVersion {
		return nil, fmt.Errorf("%w: version %d of manifests; this version of Carillon understands %d", ErrNewer, m.Version, ManifestVersion)
	}

	if err := m.validate(); err != nil {
		return nil, fmt.Errorf("%w: its manifest: %v", ErrDamaged, err)
	}

	return &m, nil
}

// validate checks what readers of a manifest rely on.
func (m *Manifest) validate() error {
	at, isID := ParseID(m.ID)
	_, err := record.NewKeys(m.Prefix)

	switch {
	case m.Version < 1:
		return fmt.Errorf("manifest: %d is not a version", m.Version)
	case !isID || !at.Equal(m.Time.Truncate(time.Millisecond)):
		return fmt.Errorf("id: %s is not that of the time %s", task.Quote(m.ID), m.Time)
	case m.Cluster == "":
		return errors.New("cluster: is empty")
	case m.Epoch < 1 || m.Format < 1 || m.Revision < 1:
		return fmt.Errorf("epoch %d, format %d and revision %d must be positive", m.Epoch, m.Format, m.Revision)
	case err != nil:
		return err
	case m.Size < 1 || m.PackedSize < 1:
		return fmt.Errorf("size %d and packed_size %d must be positive", m.Size, m.PackedSize)
	case !isSHA256(m.SHA256) || !isSHA256(m.PackedSHA256):
		return errors.New("sha256 and packed_sha256 must have 64 hexadecimal digits")
	}

	return nil
}

func isSHA256(s string) bool {
	return len(s) == 2*sha256.Size && strings.Trim(s, "0123456789abcdef") == ""
}

// Tasks returns the number of tasks.
func (m *Manifest) Tasks() int64 { return m.Counts["tasks"] }

// compareMembers orders backups of stopped members of one cluster as raft does: an entry with a later term was acknowledged, if any was.
// A member that was cut off from the others may have entries that nobody acknowledged, with an earlier term and a higher revision.
func compareMembers(a, b *Manifest) int {
	return cmp.Or(cmp.Compare(a.RaftTerm, b.RaftTerm), CompareHistory(a, b))
}

// maxUnacknowledged is more revisions than the log of a member can be ahead of another one. A restore raises the revision by more.
const maxUnacknowledged = 1_000_000_000

// areOfOneEtcd reports whether two manifests, the second with the higher revision, may be of one etcd. A restore by hand keeps the epoch,
// but its etcd begins again at term 1.
func areOfOneEtcd(a, b *Manifest) bool {
	return a != nil && b != nil && a.Cluster == b.Cluster && a.Epoch == b.Epoch && b.Revision-a.Revision < maxUnacknowledged
}

// CompareHistory orders manifests by the history of the cluster: the later history is greater, even if its file is older. Backups of
// different clusters are ordered by their clusters.
func CompareHistory(a, b *Manifest) int {
	return cmp.Or(strings.Compare(a.Cluster, b.Cluster), cmp.Compare(a.Epoch, b.Epoch), cmp.Compare(a.Revision, b.Revision),
		strings.Compare(a.ID, b.ID))
}
