package kv

import (
	"bytes"
	"errors"
	"hash/maphash"

	clientv3 "go.etcd.io/etcd/client/v3"
)

// The number of bytes that protobuf adds to a part of a request at most: tags, lengths, numbers and flags.
const (
	txnBytes     = 12
	compareBytes = 40
	getBytes     = 112
	writeBytes   = 48
)

// footprint describes the keys that a transaction uses and its size, over both branches and everything that is nested
// in them. It determines which transactions conflict, and which fit into one request.
type footprint struct {
	keys  []lockedKey // the single keys
	spans []span      // the key ranges
	// depth is what etcd counts against its limit of operations. For each level of nesting, that is the largest of
	// the numbers of comparisons, operations in Then and operations in Else.
	depth int
	// bytes is an upper bound of the size of the transaction in a request.
	bytes int
	// puts means that the transaction has a put, so that an etcd that has exceeded its quota refuses it.
	puts bool
}

// lockedKey is a key that a transaction writes, or only reads or compares.
type lockedKey struct {
	key    []byte
	hash   uint64
	dir    uint16 // see dirOf
	writes bool
	lock   *lock // set while the transaction is in the lock table
}

// span is a range of keys that a transaction writes, or only reads or compares. If end is nil, the range has no end.
type span struct {
	start, end []byte
	dir        uint16 // see dirOf
	writes     bool
	of         *ticket // set while the transaction is in the lock table
}

// contains reports whether key is in the range.
func (s span) contains(key []byte) bool {
	return bytes.Compare(s.start, key) <= 0 && (s.end == nil || bytes.Compare(key, s.end) < 0)
}

// overlapsWith reports whether a key can be in both ranges.
func (s span) overlapsWith(o span) bool {
	return (o.end == nil || bytes.Compare(s.start, o.end) < 0) && (s.end == nil || bytes.Compare(o.start, s.end) < 0)
}

// A directory contains the keys with the same first dirDepth components, such as /carillon/shards/0042/history/. Its number is
// a hash, so two directories may have the same number. noDir is the number of keys with fewer components, and of ranges that
// may contain keys of several directories.
const (
	dirDepth = 5
	dirCount = 1 << 10
	noDir    = dirCount
)

// dirLength returns the length of the directory at the beginning of a key, or 0 if it has none.
func dirLength(key []byte) int {
	slashes := 0
	for i, c := range key {
		if c == '/' {
			if slashes++; slashes == dirDepth {
				return i + 1
			}
		}
	}

	return 0
}

// dirOf returns the number of the directory of a key.
func dirOf(key []byte) uint16 {
	n := dirLength(key)
	if n == 0 {
		return noDir
	}

	return uint16(maphash.Bytes(keySeed, key[:n]) % dirCount)
}

// dirOfRange returns the number of the directory that has all keys of a range.
func dirOfRange(start, end []byte) uint16 {
	n := dirLength(start)
	if n == 0 {
		return noDir
	}

	// The directory ends before the first key in which the last slash is replaced by the next byte.
	dir := start[:n]
	if !bytes.HasPrefix(end, dir) && !(len(end) == n && end[n-1] == '/'+1 && bytes.HasPrefix(end, dir[:n-1])) {
		return noDir
	}

	return dirOf(dir)
}

// keySeed is the seed of the hashes of keys. It differs in each process, so collisions cannot be provoked.
var keySeed = maphash.MakeSeed()

// errNoOperation is the error for an operation that is the zero value.
var errNoOperation = errors.New("an operation is neither get, put, delete nor transaction")

// reset empties the footprint for reuse. It keeps the memory of the slices but no reference to keys.
func (f *footprint) reset() {
	clear(f.keys)
	clear(f.spans)
	*f = footprint{keys: f.keys[:0], spans: f.spans[:0]}
}

// measureTxn adds a transaction to an empty footprint. An error means that the transaction is malformed.
func (f *footprint) measureTxn(t Txn) error {
	depth, err := f.addTxn(t.If, t.Then, t.Else)
	f.depth = depth
	return err
}

// addTxn adds the comparisons and operations of one transaction, and returns its depth.
func (f *footprint) addTxn(cmps []clientv3.Cmp, then, els []clientv3.Op) (depth int, err error) {
	f.bytes += txnBytes
	for _, c := range cmps {
		p := c.GetCompare()
		f.addKey(p.Key, p.RangeEnd, false)
		f.bytes += compareBytes + len(p.Key) + len(p.RangeEnd) + len(p.GetValue())
	}

	nested, err := f.addOps(then)
	if err != nil {
		return 0, err
	}

	nestedElse, err := f.addOps(els)

	return max(len(cmps), len(then), len(els)) + max(nested, nestedElse), err
}

// addOps adds operations, and returns the greatest depth of the transactions among them.
func (f *footprint) addOps(ops []clientv3.Op) (depth int, err error) {
	for i := range ops {
		op := &ops[i] // a pointer, because an operation is large
		key, end := op.KeyBytes(), op.RangeBytes()
		f.bytes += len(key) + len(end)

		switch {
		case op.IsPut():
			f.puts = true
			f.bytes += writeBytes + len(op.ValueBytes())
			f.addKey(key, nil, true)
		case op.IsDelete():
			f.bytes += writeBytes
			f.addKey(key, end, true)
		case op.IsGet():
			f.bytes += getBytes
			f.addKey(key, end, false)
		case op.IsTxn():
			cmps, then, els := op.Txn()
			nested, err := f.addTxn(cmps, then, els)
			if err != nil {
				return 0, err
			}

			depth = max(depth, nested)
		default:
			return 0, errNoOperation
		}
	}

	return depth, nil
}

// addKey adds the key or range of an operation or a comparison. A nil end means the single key. An end of one zero
// byte means all keys from the key on, and so does an empty end that is not nil, for the in-process client. Other
// ranges without a key in them are ignored.
func (f *footprint) addKey(key, end []byte, writes bool) {
	switch {
	case end == nil:
		f.keys = append(f.keys, lockedKey{key: key, hash: maphash.Bytes(keySeed, key), dir: dirOf(key), writes: writes})
	case len(end) == 0 || len(end) == 1 && end[0] == 0:
		f.spans = append(f.spans, span{start: key, dir: noDir, writes: writes})
	case bytes.Compare(key, end) < 0:
		f.spans = append(f.spans, span{start: key, end: end, dir: dirOfRange(key, end), writes: writes})
	}
}
