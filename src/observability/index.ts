/** Logs, metrics' and health's endpoints. */
export { createJsonLogger, createServerLogger } from './logger.ts';
export { serveStatus, type StatusSources } from './status-server.ts';
