import { pino } from 'pino';
import type { Logger } from '../base/index.ts';

/** Structured logs on stderr, one JSON object a line. */
export function createJsonLogger(level: string): Logger {
  return pino({ level, base: null, timestamp: pino.stdTimeFunctions.isoTime }, pino.destination(2));
}
