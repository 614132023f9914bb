// Package httpaction runs one attempt of an HTTP action: it expands the templates of the request, sends it at most once,
// follows redirects, judges the response, and stores what the attempt's settings ask for.
//
// Guarantees:
//
//   - Each hop of an attempt is written to one connection at most. net/http repeats requests by itself when a reused
//     connection breaks; a gate in net.Conn.Write, below TLS, refuses the second write.
//   - Nothing is written after the attempt was killed, has ended, or is past its deadline on CLOCK_BOOTTIME, which
//     counts suspend. A few microseconds remain between the check and the system call.
//   - What a killed daemon has not sent is not sent by the kernel: sockets have SO_LINGER 0, and TCP_USER_TIMEOUT.
//   - The result tells an attempt that sent nothing (Result.Unsent) from one that sent something and received no
//     complete response. After the first written hop, every later failure is judged by the first request.
//   - Every address is judged directly before the connection, after name resolution, on every hop (see policy.HTTP).
//     Connections that were opened under other rules are not reused.
//   - No error, log line, record or stored response contains the value of a secret that the request used, or a text in a
//     URL or body that is a secret, also if the target has escaped it for URLs, JSON or HTML. Not recognized are encodings
//     such as Base64, parts of a value, and values that are very short (see masker). Of a URL they contain the scheme and
//     the host.
//   - Memory is bounded: for each attempt 64 KiB of headers and 64 KiB of the response, and a few times the size of the
//     secrets that it uses. More of a response that has to be judged or stored as a whole is in a temporary file.
//
// Not guaranteed: what a proxy or the target's kernel has received can still arrive at the target after the attempt was
// killed. The fencing token in the request is for that.
//
// The package uses no etcd key, and reads secrets through Config.Secrets.
package httpaction
