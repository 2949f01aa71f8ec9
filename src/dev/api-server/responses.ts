import type { ServerResponse } from 'node:http';
import { ApiError } from './api-error.ts';

export function send(response: ServerResponse, code: number, value: object): void {
  const text = JSON.stringify(value);
  response.writeHead(code, {
    'content-type': 'application/json',
    'content-length': Buffer.byteLength(text),
  });
  response.end(text);
}

export function sendText(response: ServerResponse, text: string | Uint8Array): void {
  response.writeHead(200, { 'content-type': 'text/plain' });
  response.end(text);
}

export const notAllowed = (): ApiError =>
  new ApiError(405, 'MethodNotAllowed', 'the server does not allow this method here');

export const statusOf = (
  code: number,
  reason: string,
  message: string,
  details?: object,
): object => ({
  kind: 'Status',
  apiVersion: 'v1',
  metadata: {},
  status: code < 300 ? 'Success' : 'Failure',
  message,
  reason,
  ...(details && { details }),
  code,
});
