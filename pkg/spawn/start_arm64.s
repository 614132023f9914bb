#include "textflag.h"

#define SYS_exit_group 94

// func start(nr, a1, a2, a3, a4, a5 uintptr, first *call) (result uintptr)
//
// The child shares the parent's memory, its stack included, and runs at the same time. It
// uses registers only; the kernel preserves all but R0.
TEXT ·start(SB),NOSPLIT|NOFRAME,$0-64
	MOVD	nr+0(FP), R8
	MOVD	a1+8(FP), R0
	MOVD	a2+16(FP), R1
	MOVD	a3+24(FP), R2
	MOVD	a4+32(FP), R3
	MOVD	a5+40(FP), R4
	MOVD	first+48(FP), R19
	SVC
	CBZ	R0, child
	MOVD	R0, result+56(FP)
	RET

child:
	MOVD	0(R19), R8
	MOVD	8(R19), R0
	MOVD	16(R19), R1
	MOVD	24(R19), R2
	MOVD	32(R19), R3
	MOVD	40(R19), R4
	MOVD	48(R19), R5
	SVC
	MOVD	R0, 56(R19)
	MOVD	64(R19), R9
	CMP	$1, R9
	BEQ	next
	CMP	$2, R9
	BEQ	equal
	CMP	$3, R9
	BEQ	zero
	CMN	$4095, R0 // carry: an error
	BCS	exit

next:
	ADD	$80, R19
	B	child

equal:
	MOVD	72(R19), R10
	CMP	R10, R0
	BEQ	next
	B	exit

zero:
	MOVD	72(R19), R10
	MOVWU	(R10), R11
	CBZ	R11, child
	B	next

exit:
	MOVD	$SYS_exit_group, R8
	MOVD	$127, R0
	SVC
	B	exit
