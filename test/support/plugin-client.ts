import { type ChildProcess, spawn } from 'node:child_process';
import { once } from 'node:events';
import { createInterface } from 'node:readline';
import { X509Certificate } from 'node:crypto';
import * as grpc from '@grpc/grpc-js';
import type { Method } from '../../src/plugin/protocol/messages.ts';
import { type Decoded, decode, encode } from '../../src/plugin/protocol/wire.ts';

/** The line on stdout for a host of plugins. */
export interface Handshake {
  readonly fields: readonly string[];
  readonly address: string;
  readonly certificate: string;
}

export const HOST = { VELERO_PLUGIN: 'hello', PLUGIN_PROTOCOL_VERSIONS: '2' };

export interface PluginProcess {
  readonly process: ChildProcess;
  readonly handshake: Handshake | undefined;
  /** Lines so far. */
  readonly log: string[];
  readonly exit: Promise<number | null>;
}

/** Starts a plugin as go-plugin does, and waits for its line or its end. */
export async function startPlugin(
  command: readonly string[],
  environment: NodeJS.ProcessEnv,
): Promise<PluginProcess> {
  const [program = '', ...args] = command;
  const started = spawn(program, args, {
    env: { PATH: process.env.PATH, HOME: process.env.HOME, ...environment },
    stdio: ['inherit', 'pipe', 'pipe'],
  });
  const exit = once(started, 'exit').then(([code]) => code as number | null);
  const log: string[] = [];
  const errors = createInterface({ input: started.stderr });
  errors.on('line', (line) => log.push(line));
  const closed = once(errors, 'close');
  const lines = createInterface({ input: started.stdout });
  const line = await Promise.race([
    once(lines, 'line').then(([text]) => text as string),
    exit.then(() => undefined),
  ]);
  if (line === undefined) await closed;
  return { process: started, handshake: line === undefined ? undefined : parse(line), log, exit };
}

function parse(line: string): Handshake {
  const fields = line.split('|');
  return { fields, address: fields[3] ?? '', certificate: fields[5] ?? '' };
}

export interface CallFailure {
  readonly code: number;
  readonly details: string;
  readonly metadata: grpc.Metadata;
}

/** A client of one plugin process, with another gRPC library. */
export class PluginClient {
  readonly #client: grpc.Client;

  constructor(
    { address, certificate }: Handshake,
    tls?: { readonly certificate: string; readonly key: string },
  ) {
    const credentials = tls
      ? grpc.credentials.createSsl(
          Buffer.from(new X509Certificate(Buffer.from(certificate, 'base64')).toString()),
          Buffer.from(tls.key),
          Buffer.from(tls.certificate),
        )
      : grpc.credentials.createInsecure();
    this.#client = new grpc.Client(`unix:${address}`, credentials, {
      'grpc.max_receive_message_length': -1,
      'grpc.max_send_message_length': -1,
      'grpc.ssl_target_name_override': 'localhost',
      'grpc.default_authority': 'localhost',
    });
  }

  /** Rejects with a {@link CallFailure}. */
  call(
    path: string,
    method: Method,
    request: Decoded,
    options: grpc.CallOptions = {},
  ): Promise<Decoded> {
    return new Promise((resolve, reject) => {
      this.#client.makeUnaryRequest(
        path,
        (value: Decoded) => encode(method.request, value),
        (bytes) => decode(method.response, bytes),
        request,
        options,
        (error, response) => {
          if (error) reject(error);
          else resolve(response ?? {});
        },
      );
    });
  }

  /** Starts a streaming call. */
  stream(path: string, method: Method): grpc.ClientReadableStream<Decoded> {
    return this.#client.makeServerStreamRequest(
      path,
      (value: Decoded) => encode(method.request, value),
      (bytes) => decode(method.response, bytes),
      {},
    );
  }

  close(): void {
    this.#client.close();
  }
}
