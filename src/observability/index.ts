/** Logs, and what is served by HTTP: metrics' and health's endpoints, a listener with limits. */
export { createJsonLogger, createServerLogger } from './logger.ts';
export { certificateOf, SELF_SIGNED, ServedCertificate } from './certificate.ts';
export { type BoundAddress, type HttpListener, listenHttp } from './http-listener.ts';
export { serveStatus, type StatusSources } from './status-server.ts';
