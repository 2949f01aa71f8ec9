import { CodedError, isCanceled, messageOf, systemCode } from '../../base/index.ts';
import { STACK, STACK_URL, STATUS } from './messages.ts';
import { decode, encode } from './wire.ts';

/**
 * Of https://grpc.github.io/grpc/core/md_doc_statuscodes.html, those that are sent or understood
 * here.
 */
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

/** An error that says itself with which code it goes over the wire. */
export class GrpcError extends CodedError {
  readonly grpcCode: number;

  constructor(grpcCode: number, message: string) {
    super('GRPC', message);
    this.grpcCode = grpcCode;
  }
}

/**
 * All of it goes in headers: Node sends 64 KiB of them, other ends may take 8 KiB, and details
 * repeat the message in base64. One that is refused is lost whole, with the error that it tells.
 */
const MESSAGE_CHARACTERS_MAX = 2048;
const FRAMES_MAX = 16;
const FILE_CHARACTERS_MAX = 100;

/**
 * What an action threw, as Velero's own plugins send it (pkg/plugin/framework/common): an error has
 * code UNKNOWN and its text; a bug is a panic, which has ABORTED and the stack in its text. The
 * stack is in the details too, where Velero's log takes file and function from.
 */
export function statusOf(thrown: unknown): GrpcStatus {
  if (thrown instanceof GrpcError) return withStack(thrown.grpcCode, thrown.message, thrown);
  if (isForeseen(thrown)) {
    return withStack(GrpcCode.unknown, messageOf(thrown), thrown);
  }
  return panicOf(thrown);
}

/**
 * A {@link CodedError} of whichever copy of the class, since the actions are a program of their
 * own; the system's errors; a cancel.
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

/** The stack in the details of a status, or an empty one. */
export function framesIn({ details }: GrpcStatus): StackFrame[] {
  if (!details) return [];
  try {
    const { details: all } = decode(STATUS, details) as {
      details: { typeUrl: string; value: Buffer }[];
    };
    const stack = all.find(({ typeUrl }) => typeUrl === STACK_URL);
    return stack ? (decode(STACK, stack.value).frames as StackFrame[]) : [];
  } catch {
    // What went wrong is told by the message; the stack only says where.
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
