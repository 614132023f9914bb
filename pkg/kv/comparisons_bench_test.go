package kv

import (
	"context"
	"fmt"
	"testing"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc"
)

// unread is an etcd that accepts everything without reading it.
type unread struct{ pb.KVClient }

func (unread) Txn(context.Context, *pb.TxnRequest, ...grpc.CallOption) (*pb.TxnResponse, error) {
	return &pb.TxnResponse{Succeeded: true}, nil
}

// BenchmarkRequest measures the construction of a request of four commits, each with 120 comparisons and as many
// puts: by clientv3 alone, and by a Client.
func BenchmarkRequest(b *testing.B) {
	ops := make([]clientv3.Op, 4)
	for i := range ops {
		var cmps []clientv3.Cmp
		var puts []clientv3.Op
		for j := range 120 {
			cmps = append(cmps, ModIs(fmt.Sprintf("/carillon/shards/%04d/tasks/default/backup-%d", i, j), 1))
			puts = append(puts, clientv3.OpPut(fmt.Sprintf("/carillon/runs/node-1/%04d/default/backup-%d", i, j), "value"))
		}

		ops[i] = clientv3.OpTxn(cmps, puts, nil)
	}

	for how, c := range map[string]clientv3.KV{
		"clientv3": clientv3.NewKVFromKVClient(unread{}, nil), "client": NewKV(unread{}, nil),
	} {
		b.Run(how, func(b *testing.B) {
			bound := boundKV{KV: c, bound: bound{defaultCallTimeout}}
			b.ReportAllocs()

			for b.Loop() {
				if _, err := bound.Txn(b.Context()).Then(ops...).Commit(); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
