import { CodedError, isCanceled, messageOf, systemCode } from '../../base/index.ts';
import { STACK, STACK_URL, STATUS } from './messages.ts';
import { decode, encode } from './wire.ts';

/** Codes in use, of https://grpc.github.io/grpc/core/md_doc_statuscodes.html. */
export const GrpcCode = {
  ok: 0,
  canceled: 1,
  unknown: 2,
  invalidArgument: 3,
  deadlineExceeded: 4,
  resourceExhausted: 8,
  aborted: 10,
  unimplemented: 12,
  internal: 13,
  unavailable: 14,
} as const;

export interface GrpcStatus {
  readonly code: number;
  readonly message: string;
  /** A google.rpc.Status in protobuf, with the stack. */
  readonly details?: Buffer | undefined;
}

/** An error with its own gRPC status code. */
export class GrpcError extends CodedError {
  readonly grpcCode: number;

  constructor(grpcCode: number, message: string) {
    super('GRPC', message);
    this.grpcCode = grpcCode;
  }
}

/**
 * All of this goes into headers. Node sends 64 KiB of them, other peers may accept only 8 KiB, and
 * the details repeat the message in base64. If headers are refused, the whole error is lost.
 */
const MESSAGE_CHARACTERS_MAX = 2048;
const FRAMES_MAX = 16;
const FILE_CHARACTERS_MAX = 100;

/**
 * The status for a thrown error, as Velero's own plugins send it (pkg/plugin/framework/common). An
 * error has code UNKNOWN and its text. A bug is a panic: code ABORTED, with the stack in the text.
 * The details hold the stack too, and Velero's log reads file and function from there.
 */
export function statusOf(thrown: unknown): GrpcStatus {
  if (thrown instanceof GrpcError) return withStack(thrown.grpcCode, thrown.message, thrown);
  if (isForeseen(thrown)) {
    return withStack(GrpcCode.unknown, messageOf(thrown), thrown);
  }
  return panicOf(thrown);
}

/**
 * Whether the error is expected: a {@link CodedError} of any copy of the class, a system error, or
 * a cancel. The actions are a separate program with their own copy.
 */
const isForeseen = (thrown: unknown): boolean =>
  (thrown instanceof Error && 'retry' in thrown) ||
  systemCode(thrown) !== undefined ||
  isCanceled(thrown);

export function panicOf(thrown: unknown): GrpcStatus {
  const stack = thrown instanceof Error ? `, stack trace: ${thrown.stack ?? ''}` : '';
  const text = `plugin panicked: ${messageOf(thrown)}${stack}`;
  return withStack(GrpcCode.aborted, text, thrown);
}

function withStack(code: number, text: string, thrown: unknown): GrpcStatus {
  const message = text.slice(0, MESSAGE_CHARACTERS_MAX);
  const frames = thrown instanceof Error ? framesOf(thrown) : [];
  if (frames.length === 0) return { code, message };
  const value = encode(STACK, { frames });
  const details = encode(STATUS, { code, message, details: [{ typeUrl: STACK_URL, value }] });
  return { code, message, details };
}

/** The stack in a status's details, or an empty stack. */
export function framesIn({ details }: GrpcStatus): StackFrame[] {
  if (!details) return [];
  try {
    const { details: all } = decode(STATUS, details) as {
      details: { typeUrl: string; value: Buffer }[];
    };
    const stack = all.find(({ typeUrl }) => typeUrl === STACK_URL);
    return stack ? (decode(STACK, stack.value).frames as StackFrame[]) : [];
  } catch {
    // The stack is optional: the message has the reason.
    return [];
  }
}

export interface StackFrame {
  readonly file: string;
  readonly line: number;
  readonly function: string;
}

/** Lines of V8: `at name (file:line:column)` or `at file:line:column`. */
const FRAME = /^\s*at (?:(.+?) \()?(.+?):(\d+):\d+\)?$/;

export function framesOf({ stack = '' }: Error): StackFrame[] {
  const frames: StackFrame[] = [];
  for (const line of stack.split('\n')) {
    const match = FRAME.exec(line);
    if (!match) continue;
    const [, name = '<anonymous>', file = '', number = '0'] = match;
    frames.push({
      file: file.replace(/^file:\/\//, '').slice(-FILE_CHARACTERS_MAX),
      line: Number(number),
      function: name,
    });
    if (frames.length === FRAMES_MAX) break;
  }
  return frames;
}
