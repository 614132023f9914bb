// Package garbage sets how much the heap may grow before Go collects
// garbage: more than by default while the heap is small, and less while the process is idle.
//
// It is for a process that has little in memory and creates much garbage when it is
// busy. If GOGC is set, the package changes nothing. GOMEMLIMIT applies in any case.
package garbage
