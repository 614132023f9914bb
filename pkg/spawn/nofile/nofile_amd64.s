#include "textflag.h"

// func getrlimit(l *[2]uint64)
TEXT ·getrlimit(SB),NOSPLIT,$0-8
	MOVL	$302, AX // prlimit64
	MOVL	$0, DI
	MOVL	$7, SI // RLIMIT_NOFILE
	MOVL	$0, DX
	MOVQ	l+0(FP), R10
	SYSCALL
	RET
