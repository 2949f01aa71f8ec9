import * as http from 'node:http';
import * as https from 'node:https';
import * as net from 'node:net';
import { silentLogger } from '../../../../src/base/index.ts';
import { openStatusPage } from '../../../../src/cli/server/page.ts';
import type { HttpListener } from '../../../../src/observability/index.ts';
import { type FakeApi, NAMESPACE } from './fake-api.ts';

/** For results that are immediate on an idle machine. */
export const PATIENT = { timeout: 20_000 };

export interface Answer {
  readonly status: number;
  readonly headers: http.IncomingHttpHeaders;
  readonly body: string;
  readonly bytes: Buffer;
}

export interface Question {
  readonly method?: string;
  readonly headers?: http.OutgoingHttpHeaders;
  readonly body?: string;
  readonly isTls?: boolean;
}

/** A request with exactly these headers, on its own connection. */
export function ask(address: string, path: string, question: Question = {}): Promise<Answer> {
  const { method = 'GET', headers = {}, body, isTls = false } = question;
  const port = portOf(address);
  return new Promise((resolve, reject) => {
    const options = { host: '127.0.0.1', port, path, method, headers, agent: false };
    const onResponse = (response: http.IncomingMessage): void => {
      const parts: Buffer[] = [];
      response.on('data', (part: Buffer) => parts.push(part));
      response.on('error', reject);
      response.on('end', () => {
        const bytes = Buffer.concat(parts);
        const { statusCode: status = 0, headers: told } = response;
        resolve({ status, headers: told, body: bytes.toString('utf8'), bytes });
      });
    };
    const request = isTls
      ? https.request({ ...options, rejectUnauthorized: false }, onResponse)
      : http.request(options, onResponse);
    request.on('error', reject);
    request.end(body);
  });
}

const portOf = (address: string): number => Number(/\d+$/.exec(address)?.[0]);

/** The answer to raw bytes on a connection, until the server closes it. */
export function saidTo(address: string, bytes: string): Promise<string> {
  return new Promise((resolve) => {
    let said = '';
    const socket = net.connect(portOf(address), '127.0.0.1', () => socket.write(bytes));
    socket.on('data', (part: Buffer) => (said += part.toString('latin1')));
    socket.on('error', () => undefined);
    socket.on('close', () => {
      resolve(said);
    });
  });
}

interface PageSettings {
  readonly needsLogin?: boolean;
  readonly hasFiles?: boolean;
  readonly audiences?: readonly string[];
}

/** Serves the page on loopback, or on all addresses if `needsLogin`. Resolves when it answers. */
export async function openPage(
  api: FakeApi,
  { needsLogin = false, hasFiles = false, audiences }: PageSettings = {},
): Promise<HttpListener & { ask(path: string, question?: Question): Promise<Answer> }> {
  const address = needsLogin ? '0.0.0.0:0' : '127.0.0.1:0';
  const { client } = api;
  const page = await openStatusPage(address, {
    client,
    logger: silentLogger,
    namespace: NAMESPACE,
    hasFiles,
    ...(audiences && { audiences }),
  });
  return {
    ...page,
    ask: (path, question) => ask(page.address, path, { ...question, isTls: needsLogin }),
  };
}

/** The visible text: without tags, with one blank between words. */
export const textOf = (body: string): string =>
  unescaped(
    body
      .replaceAll(/<(script|style)>.*?<\/\1>/gs, '')
      .replaceAll(/<[^>]*>/g, ' ')
      .replaceAll(/\s+/g, ' '),
  ).replaceAll(/ ([,.)])/g, '$1');

const unescaped = (text: string): string =>
  text
    .replaceAll('&lt;', '<')
    .replaceAll('&gt;', '>')
    .replaceAll('&quot;', '"')
    .replaceAll('&#39;', "'")
    .replaceAll('&#96;', '`')
    .replaceAll('&amp;', '&');

/** The text of one part of the page. */
export function sectionOf(body: string, id: string): string {
  const [, section = ''] =
    new RegExp(`<section aria-labelledby="${id}">(.*?)</section>`, 's').exec(body) ?? [];
  return textOf(section).trim();
}
