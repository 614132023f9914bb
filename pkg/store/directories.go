package store

import (
	"cmp"
	"context"
	"slices"
	"strings"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"
)

// directory is the set of keys that begin with parent, a name and '/'. The parent ends in '/'.
type directory struct{ parent, name string }

// prefix returns the beginning of the keys of a directory.
func (d directory) prefix() string { return d.parent + d.name + "/" }

// eachDirectory executes reads for each directory directly below some parents, and calls f for each answer; i is the index
// of the read among those of its directory. Parents must not contain each other. All reads must be at the revision rev.
//
// known are directories that probably have keys, for example the inboxes of the nodes that are present. No directory that
// has keys at the revision is missed if it is not among them: eachDirectory also looks for a key in each gap between the
// known ones. The gaps are usually empty, so everything is read in a single round. A search from one directory to the next
// would not do: for each range, etcd counts all keys up to its end.
func (s *conn) eachDirectory(
	ctx context.Context, parents []string, known []directory, rev int64,
	reads func(directory) []clientv3.Op, f func(d directory, i int, r *etcdserverpb.RangeResponse),
) error {
	// pendingRead is a read of a directory or, if end is set, the search of a gap that ends there.
	type pendingRead struct {
		op  clientv3.Op
		dir directory // of a gap: only the parent
		i   int
		end string
	}
	var pending []pendingRead

	addReads := func(d directory) {
		for i, op := range reads(d) {
			pending = append(pending, pendingRead{op: op, dir: d, i: i})
		}
	}
	addGap := func(parent, from, end string) {
		if from < end {
			op := clientv3.OpGet(from, clientv3.WithRange(end), clientv3.WithRev(rev), clientv3.WithKeysOnly(), clientv3.WithLimit(1))
			pending = append(pending, pendingRead{op: op, dir: directory{parent: parent}, end: end})
		}
	}

	below := map[string][]directory{}
	for _, d := range known {
		below[d.parent] = append(below[d.parent], d)
	}

	for _, parent := range parents {
		// The order of directories is that of their keys: "a-b/" comes before "a/".
		list := below[parent]
		slices.SortFunc(list, func(a, b directory) int { return cmp.Compare(a.prefix(), b.prefix()) })

		from := parent
		for _, d := range slices.Compact(list) {
			addGap(parent, from, d.prefix())
			addReads(d)
			from = clientv3.GetPrefixRangeEnd(d.prefix())
		}
		addGap(parent, from, clientv3.GetPrefixRangeEnd(parent))
	}

	for len(pending) > 0 {
		round := pending
		pending = nil

		ops := make([]clientv3.Op, len(round))
		for i, p := range round {
			ops[i] = p.op
		}

		err := s.eachResponse(ctx, ops, func(i int, r *etcdserverpb.RangeResponse) {
			p := round[i]
			switch {
			case p.end == "":
				f(p.dir, p.i, r)
			case len(r.Kvs) > 0:
				// This is the first key of a directory that is not known. Others may follow it.
				d := directory{parent: p.dir.parent}
				d.name, _, _ = strings.Cut(strings.TrimPrefix(string(r.Kvs[0].Key), d.parent), "/")
				addReads(d)
				addGap(d.parent, clientv3.GetPrefixRangeEnd(d.prefix()), p.end)
			}
		})
		if err != nil {
			return err
		}
	}

	return nil
}
