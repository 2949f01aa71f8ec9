import { redact, redactAndCut } from '../../base/index.ts';

/** Our choice: an error has few wrappers, and the first frames of each show its source. */
const CAUSES_MAX = 8;
const FRAMES_MAX = 20;

/**
 * An error with its causes and their stack frames, as lines for `--verbose`. Messages of causes are
 * cut to a sentence, because libraries repeat signed URLs and whole pages.
 */
export function describeChain(error: Error): string[] {
  const lines = [`${error.name}: ${redact(error.message)}`, ...framesOf(error)];
  let at = error.cause;
  for (let depth = 0; at instanceof Error && depth < CAUSES_MAX; at = at.cause, depth++) {
    lines.push(`caused by: ${at.name}: ${redactAndCut(at.message)}`, ...framesOf(at));
  }
  return lines;
}

/** The stack begins with the message, which may be a whole page. */
function framesOf({ stack = '', message }: Error): string[] {
  const at = stack.indexOf(message);
  const frames = (at < 0 ? stack : stack.slice(at + message.length)).split('\n');
  return frames
    .filter((line) => /^\s+at /.test(line))
    .slice(0, FRAMES_MAX)
    .map(redactAndCut);
}
