import { redact, redactAndCut } from '../base/index.ts';

/**
 * Our choice: an error is wrapped by few layers, and each tells where it comes from in its first
 * frames.
 */
const CAUSES_MAX = 8;
const FRAMES_MAX = 20;

/**
 * An error with its causes and where they were thrown, in lines for `--verbose`. Causes are of
 * libraries, which repeat URLs with their signatures and whole pages: of these a sentence each is
 * told.
 */
export function describeChain(error: Error): string[] {
  const lines = [`${error.name}: ${redact(error.message)}`, ...framesOf(error)];
  let at = error.cause;
  for (let depth = 0; at instanceof Error && depth < CAUSES_MAX; at = at.cause, depth++) {
    lines.push(`caused by: ${at.name}: ${redactAndCut(at.message)}`, ...framesOf(at));
  }
  return lines;
}

/** The stack begins with the message, which may be a page. */
function framesOf({ stack = '', message }: Error): string[] {
  const at = stack.indexOf(message);
  const frames = (at < 0 ? stack : stack.slice(at + message.length)).split('\n');
  return frames
    .filter((line) => /^\s+at /.test(line))
    .slice(0, FRAMES_MAX)
    .map(redactAndCut);
}
