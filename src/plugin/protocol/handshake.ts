import { CodedError, systemClock, makeCertificate } from '../../base/index.ts';

/** Velero and its plugins recognize each other by these (pkg/plugin/framework/handshake.go). */
export const MAGIC_COOKIE = 'hello';
export const APP_VERSION = 2;
/** go-plugin: plugin.go, CoreProtocolVersion. */
export const CORE_VERSION = 1;

/** The environment variables that the host sets for a plugin. */
export interface HostEnvironment {
  /** `VELERO_PLUGIN` */
  readonly cookie: string | undefined;
  /** `PLUGIN_PROTOCOL_VERSIONS`: numbers separated by commas. */
  readonly protocolVersions: string | undefined;
  /** `PLUGIN_CLIENT_CERT`, PEM: the host requires mutual TLS. Velero does not. */
  readonly clientCertificate: string | undefined;
  /** `PLUGIN_UNIX_SOCKET_DIR` */
  readonly socketDirectory: string | undefined;
  /** `PLUGIN_MULTIPLEX_GRPC`: the host reads a seventh field. */
  readonly multiplex: string | undefined;
}

/** Throws `NO_PLUGIN_HOST` without a host, `PLUGIN_PROTOCOL` for another protocol version. */
export function assertHost({ cookie, protocolVersions }: HostEnvironment): void {
  if (cookie !== MAGIC_COOKIE) {
    const text =
      'this program is a plugin of Velero, which starts it itself: put it into the plugin folder of the Velero server';
    throw new CodedError('NO_PLUGIN_HOST', text);
  }
  // Early hosts sent no versions, because only one existed.
  const offered = (protocolVersions ?? '').split(',').filter((version) => version.trim() !== '');
  if (offered.length === 0 || offered.some((version) => Number(version) === APP_VERSION)) return;
  const text = `the host speaks version ${offered.join(', ')} of Velero's plugin protocol and this plugin version ${APP_VERSION}: install a plugin that fits this Velero`;
  throw new CodedError('PLUGIN_PROTOCOL', text);
}

export interface Tls {
  readonly certificate: string;
  readonly key: string;
  readonly client: string;
}

/** go-plugin's AutoMTLS: each side makes a certificate and trusts the other side's. */
export function tlsFor({ clientCertificate }: HostEnvironment): Tls | undefined {
  if (clientCertificate === undefined || clientCertificate === '') return undefined;
  const nowMs = Number(systemClock.nowNs() / 1_000_000n);
  return { ...makeCertificate(nowMs, 'longshore-plugin'), client: clientCertificate };
}

/** The only line on stdout, for which the host waits. */
export function handshakeLine(socket: string, tls: Tls | undefined, multiplex = ''): string {
  const certificate = tls ? derOf(tls.certificate) : '';
  const fields = [CORE_VERSION, APP_VERSION, 'unix', socket, 'grpc', certificate];
  // Multiplexed calls are not offered: Velero's plugins never call the host back.
  return `${[...fields, ...(multiplex === '' ? [] : [false])].join('|')}\n`;
}

/** Base64 without padding, as in go-plugin. */
const derOf = (pem: string): string =>
  pem.replaceAll(/-----[^-]+-----|\s/g, '').replaceAll('=', '');
