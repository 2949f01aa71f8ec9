import { CodedError, systemClock, makeCertificate } from '../../base/index.ts';

/** How Velero and its plugins know each other (pkg/plugin/framework/handshake.go). */
export const MAGIC_COOKIE = 'hello';
export const APP_VERSION = 2;
/** go-plugin: plugin.go, CoreProtocolVersion. */
export const CORE_VERSION = 1;

/** What the host says in the environment of a plugin. */
export interface HostEnvironment {
  /** `VELERO_PLUGIN` */
  readonly cookie: string | undefined;
  /** `PLUGIN_PROTOCOL_VERSIONS`: numbers with commas between. */
  readonly protocolVersions: string | undefined;
  /**
   * `PLUGIN_CLIENT_CERT`, PEM: the host wants TLS with certificates on both sides. Velero does not.
   */
  readonly clientCertificate: string | undefined;
  /** `PLUGIN_UNIX_SOCKET_DIR` */
  readonly socketDirectory: string | undefined;
  /** `PLUGIN_MULTIPLEX_GRPC`: the host reads a seventh field. */
  readonly multiplex: string | undefined;
}

/**
 * Throws `NO_PLUGIN_HOST` where a person started it, and `PLUGIN_PROTOCOL` for a host that speaks
 * another protocol.
 */
export function assertHost({ cookie, protocolVersions }: HostEnvironment): void {
  if (cookie !== MAGIC_COOKIE) {
    const text =
      'this program is a plugin of Velero, which starts it itself: put it into the plugin folder of the Velero server';
    throw new CodedError('NO_PLUGIN_HOST', text);
  }
  // Hosts of the first years said no versions, and meant the only one.
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

/**
 * go-plugin's AutoMTLS: each side makes a certificate for this one process, and trusts the other's.
 */
export function tlsFor({ clientCertificate }: HostEnvironment): Tls | undefined {
  if (clientCertificate === undefined || clientCertificate === '') return undefined;
  const nowMs = Number(systemClock.nowNs() / 1_000_000n);
  return { ...makeCertificate(nowMs, 'longshore-plugin'), client: clientCertificate };
}

/** The line that the host waits for on stdout; the first and last one there. */
export function handshakeLine(socket: string, tls: Tls | undefined, multiplex = ''): string {
  const certificate = tls ? derOf(tls.certificate) : '';
  const fields = [CORE_VERSION, APP_VERSION, 'unix', socket, 'grpc', certificate];
  // Calls through one connection are not offered: Velero's plugins call nobody back.
  return `${[...fields, ...(multiplex === '' ? [] : [false])].join('|')}\n`;
}

/** Base64 without its padding, as go-plugin has it. */
const derOf = (pem: string): string =>
  pem.replaceAll(/-----[^-]+-----|\s/g, '').replaceAll('=', '');
