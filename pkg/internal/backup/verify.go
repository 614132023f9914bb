package backup

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"

	"go.etcd.io/etcd/api/v3/mvccpb"

	"github.com/carillonhq/carillon/pkg/internal/ledger"
	"github.com/carillonhq/carillon/pkg/store/record"
)

// OpenUnpacked unpacks a backup to a temporary file in a directory, verifies it, and opens its database. The file is removed when the
// database is closed. A snapshot of etcdctl is verified and opened where it is.
func (s *Stored) OpenUnpacked(ctx context.Context, dir string) (*Database, error) {
	if s.Manifest == nil {
		if err := s.Unpack(ctx, discard{}); err != nil {
			return nil, err
		}
		return OpenDatabase(s.Path)
	}

	if err := RequireSpace(dir, s.Manifest.Size); err != nil {
		return nil, err
	}

	f, err := os.CreateTemp(dir, "carillon-backup-*.db") // of mode 0600
	if err != nil {
		return nil, err
	}

	remove := func() error { return os.Remove(f.Name()) }
	if err := errors.Join(s.Unpack(ctx, f), f.Close()); err != nil {
		return nil, errors.Join(err, remove())
	}

	d, err := OpenDatabase(f.Name())
	if err != nil {
		return nil, errors.Join(err, remove())
	}
	d.onClose = remove

	return d, nil
}

// discard is a writer without the ReadFrom of io.Discard, so that what is read passes through its caller.
type discard struct{}

func (discard) Write(p []byte) (int, error) { return len(p), nil }

// Verification is what Verify has found. Its hashes are right.
type Verification struct {
	Keys       int64    // keys below the prefix
	Unreadable []string // the first records that cannot be decoded, with the reasons
	BadRecords int64    // how many there are
	Unknown    []string // kinds of keys that this version does not know
	Other      int64    // keys outside the prefix
	Revision   int64
}

// maxUnreadable is how many unreadable records a Verification names.
const maxUnreadable = 20

// Verify verifies the hashes of a backup, and decodes every record. It unpacks the backup to a temporary file in a directory. prefix is
// that of Carillon's keys, for a backup without a manifest. An error means that the backup cannot be used.
func (s *Stored) Verify(ctx context.Context, dir, prefix string) (*Verification, error) {
	d, err := s.OpenUnpacked(ctx, dir)
	if err != nil {
		return nil, err
	}

	v, err := s.verifyDatabase(ctx, d, prefix)
	if err := errors.Join(err, d.Close()); err != nil {
		return nil, err
	}

	return v, nil
}

func (s *Stored) verifyDatabase(ctx context.Context, d *Database, prefix string) (*Verification, error) {
	// The manifest is made again from the database, and must be the same.
	m := &Manifest{Version: ManifestVersion, Prefix: prefix}
	if s.Manifest != nil {
		m.Prefix = s.Manifest.Prefix
	}

	keys, err := record.NewKeys(m.Prefix)
	if err != nil {
		return nil, err
	}

	v := &Verification{Revision: d.Revision}
	sum := newSummary(keys, m)
	err = d.Each(ctx, "", func(kv *mvccpb.KeyValue) error {
		if strings.HasPrefix(string(kv.GetKey()), keys.Root()) {
			v.Keys++
			if err := checkRecord(keys, kv); err != nil {
				if v.BadRecords++; v.BadRecords <= maxUnreadable {
					v.Unreadable = append(v.Unreadable, fmt.Sprintf("%s: %v", kv.GetKey(), err))
				}
			}
		}

		return sum.add(kv)
	})
	if err != nil {
		return nil, err
	}

	sum.describe()
	v.Unknown, v.Other = m.Unknown, m.Other

	switch {
	case m.Cluster == "":
		return nil, noClusterError(m.Prefix)
	case s.Manifest == nil:
	case s.Manifest.Cluster != m.Cluster || s.Manifest.Epoch != m.Epoch || s.Manifest.Format != m.Format || s.Manifest.Revision != d.Revision ||
		s.Manifest.Other != m.Other || sumCounts(s.Manifest) != v.Keys:
		return nil, fmt.Errorf("backup %s: %w: its manifest describes another snapshot", s.Name, ErrDamaged)
	}

	return v, nil
}

// sumCounts returns how many keys a manifest counts below the prefix. Versions that know other kinds divide them otherwise.
func sumCounts(m *Manifest) (n int64) {
	for _, count := range m.Counts {
		n += count
	}
	return n
}

// checkRecord decodes a record.
func checkRecord(keys record.Keys, kv *mvccpb.KeyValue) error {
	kind, _, err := keys.Check(kv)
	if kind == "ledger" {
		_, _, err = ledger.Decode(kv.GetValue())
	}

	return err
}
