#include "textflag.h"

// func getrlimit(l *[2]uint64)
TEXT ·getrlimit(SB),NOSPLIT|NOFRAME,$0-8
	MOVD	$261, R8 // prlimit64
	MOVD	$0, R0
	MOVD	$7, R1 // RLIMIT_NOFILE
	MOVD	$0, R2
	MOVD	l+0(FP), R3
	SVC
	RET
