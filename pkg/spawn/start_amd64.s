#include "textflag.h"

#define SYS_exit_group 231

// func start(nr, a1, a2, a3, a4, a5 uintptr, first *call) (result uintptr)
//
// The child shares the parent's memory, its stack included, and runs at the same time. It
// uses registers only; the kernel preserves all but AX, CX and R11.
TEXT ·start(SB),NOSPLIT,$0-64
	MOVQ	nr+0(FP), AX
	MOVQ	a1+8(FP), DI
	MOVQ	a2+16(FP), SI
	MOVQ	a3+24(FP), DX
	MOVQ	a4+32(FP), R10
	MOVQ	a5+40(FP), R8
	MOVQ	first+48(FP), R12
	SYSCALL
	TESTQ	AX, AX
	JZ	child
	MOVQ	AX, result+56(FP)
	RET

child:
	MOVQ	0(R12), AX
	MOVQ	8(R12), DI
	MOVQ	16(R12), SI
	MOVQ	24(R12), DX
	MOVQ	32(R12), R10
	MOVQ	40(R12), R8
	MOVQ	48(R12), R9
	SYSCALL
	MOVQ	AX, 56(R12)
	MOVQ	64(R12), BX
	CMPQ	BX, $1
	JEQ	next
	CMPQ	BX, $2
	JEQ	equal
	CMPQ	BX, $3
	JEQ	zero
	CMPQ	AX, $-4095 // the unsigned comparison of errors
	JCC	exit

next:
	ADDQ	$80, R12
	JMP	child

equal:
	CMPQ	AX, 72(R12)
	JEQ	next
	JMP	exit

zero:
	MOVQ	72(R12), BX
	CMPL	0(BX), $0
	JEQ	child
	JMP	next

exit:
	MOVL	$SYS_exit_group, AX
	MOVL	$127, DI
	SYSCALL
	JMP	exit
