/** Logs, and HTTP: metrics and health endpoints, a listener with limits. */
export { createJsonLogger, createServerLogger } from './logger.ts';
export { certificateOf, SELF_SIGNED, ServedCertificate } from './certificate.ts';
export { type BoundAddress, type HttpListener, listenHttp } from './http-listener.ts';
export { serveStatus, type StatusSources } from './status-server.ts';
