/** Logs; later metrics and health. */
export { createJsonLogger } from './logger.ts';
