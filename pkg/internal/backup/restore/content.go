package restore

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"go.etcd.io/etcd/api/v3/mvccpb"

	"github.com/carillonhq/carillon/pkg/internal/backup"
	"github.com/carillonhq/carillon/pkg/store"
	"github.com/carillonhq/carillon/pkg/store/record"
	"github.com/carillonhq/carillon/pkg/task"
)

// maxExamples is how many keys an error names.
const maxExamples = 3

// Content is what one pass over an unpacked snapshot finds.
type Content struct {
	Revision int64            // of etcd
	Cluster  task.Cluster     // its record
	Nodes    []task.Node      // that were present
	Counts   map[string]int64 // how many keys of each kind there are below the prefix
	other    keyCount         // keys outside of the prefix
	unknown  keyCount         // keys of unknown kinds
	kinds    []string         // these kinds
	facts    etcdFacts
}

// keyCount counts keys and remembers the first ones.
type keyCount struct {
	count    int64
	examples []string
}

func (c *keyCount) add(key []byte) {
	if c.count++; len(c.examples) < maxExamples {
		c.examples = append(c.examples, task.Quote(string(key)))
	}
}

// ReadContent reads an unpacked snapshot. It returns an error if the snapshot contains no cluster with the prefix that this version can
// restore.
func ReadContent(ctx context.Context, path string, keys record.Keys) (*Content, error) {
	c := &Content{Counts: map[string]int64{}}
	var err error
	if c.facts, err = readFacts(path); err != nil {
		return nil, err
	}

	db, err := backup.OpenDatabase(path)
	if err != nil {
		return nil, err
	}
	defer db.Close()

	c.Revision = db.Revision

	found := false
	unknown := map[string]bool{}
	err = db.Each(ctx, "", func(e *mvccpb.KeyValue) error {
		if !strings.HasPrefix(string(e.Key), keys.Root()) {
			c.other.add(e.Key)
			return nil
		}

		kind, known := keys.KeyKind(string(e.Key))
		c.Counts[kind]++
		if !known {
			unknown[kind] = true
			c.unknown.add(e.Key)
		}

		switch {
		case string(e.Key) == keys.Cluster():
			found = true
			r, err := store.DecodeCluster(e)
			c.Cluster = r.Cluster
			return err
		case strings.HasPrefix(string(e.Key), keys.Nodes()):
			if n, err := record.DecodeNode(keys, e); err == nil {
				c.Nodes = append(c.Nodes, n)
			}
		}

		return nil
	})
	if err != nil {
		return nil, err
	}

	c.kinds = slices.Sorted(maps.Keys(unknown))
	slices.SortFunc(c.Nodes, func(a, b task.Node) int { return strings.Compare(a.Name, b.Name) })

	switch {
	case !found:
		return nil, fmt.Errorf("the backup contains no cluster with the prefix %s, which is that of the settings", task.Quote(strings.TrimSuffix(keys.Root(), "/")))
	case c.Cluster.InForce() > store.NewestFormat:
		return nil, fmt.Errorf("%w: the backup has format %d, but this version understands only formats up to %d: restore it with a newer version",
			store.ErrFormat, c.Cluster.InForce(), store.NewestFormat)
	}

	return c, nil
}

// check refuses content that the options do not accept.
func (c *Content) check(o *Options) error {
	if c.facts.corrupt && !o.AcceptCorrupt {
		return errors.New("etcd had raised the alarm CORRUPT when the backup was made, so its content may be damaged: restore another backup, " +
			"or add --accept-corrupt")
	}
	if o.Seen.Cluster != "" && o.Seen.Cluster != c.Cluster.ID {
		return fmt.Errorf("the backup is of cluster %s, but the data directory %s belongs to cluster %s", c.Cluster.ID, o.DataDir, o.Seen.Cluster)
	}
	if c.other.count > 0 && !o.DropOtherKeys {
		return fmt.Errorf("the backup has %d keys outside of the prefix %s, such as %s: another application uses the same etcd, and would lose them; "+
			"add --drop-other-keys to restore without them", c.other.count, o.Prefix, strings.Join(c.other.examples, ", "))
	}
	if c.unknown.count > 0 && !o.DropUnknown {
		return fmt.Errorf("the backup has %d keys of kinds that this version does not know, such as %s: a newer version may have written them; "+
			"restore with that version, or add --drop-unknown to restore without them", c.unknown.count, strings.Join(c.unknown.examples, ", "))
	}

	return nil
}

// addresses returns the addresses of the nodes that were present.
func (c *Content) addresses() (list []string) {
	for _, n := range c.Nodes {
		if n.Address != "" {
			list = append(list, n.Address)
		}
	}

	return list
}
