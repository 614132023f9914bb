// Package ask finds the tasks that match a query: which ones, in which order, and how many there are.
//
// A list by name reads a key range of etcd (FindTasks). For all others, the owners of all shards are asked. Each scheduling
// node answers for its shards from memory (package readmodel). The node that receives a request asks all of them at the same
// time, for at most a second, and merges their answers.
//
// An answer is either complete and correct, or names what is missing:
//
//   - A shard that nobody answers for is named as missing.
//   - If two nodes answer for a shard, because its owner changes, the node with the older owner key is asked once more
//     without this shard.
//   - A node refuses to answer if its own access records let the caller read less than the asking node says.
//
// A question contains the namespaces that its caller may read. The owner's node applies them before it counts or cuts
// anything, and answers are shared only between callers who may read the same.
//
// If the owners cannot be asked, because they are busy or away, the last answer to the same question is given again,
// with its age, for up to ten minutes.
package ask
