import { CodedError } from '../base/index.ts';

/** Bytes that can be read at any place: a raw volume of a snapshot, an image, or a part of one. */
export interface Device {
  readonly sizeBytes: number;
  /**
   * `lengthBytes` bytes from `offset` on, which nobody may write into: others may be given the
   * same. Whoever calls has made sure that they are within the device ({@link readDevice}). Throws
   * what the storage throws, and the reason of the signal.
   */
  read(offset: number, lengthBytes: number, signal: AbortSignal): Promise<Uint8Array>;
}

/** What is stored on a device contradicts itself. `DEVICE_DAMAGED` */
export const damaged = (what: string, options?: ErrorOptions): CodedError =>
  new CodedError('DEVICE_DAMAGED', `what is on the device is damaged: ${what}`, options);

/** It is sound, as far as one can tell, and not read here. `DEVICE_NOT_READ` */
export const notRead = (what: string): CodedError => new CodedError('DEVICE_NOT_READ', what);

/**
 * Reads a range that something on the device names. `what` is for the message. Throws
 * `DEVICE_DAMAGED` where it is beyond the end.
 */
export function readDevice(
  device: Device,
  range: { readonly offset: number; readonly lengthBytes: number; readonly what: string },
  signal: AbortSignal,
): Promise<Uint8Array> {
  const { offset, lengthBytes, what } = range;
  if (!isWithin(device, offset, lengthBytes)) {
    throw damaged(`${what} is at byte ${offset}, and the device has ${device.sizeBytes} bytes`);
  }
  return device.read(offset, lengthBytes, signal);
}

export const isWithin = ({ sizeBytes }: Device, offset: number, lengthBytes: number): boolean =>
  Number.isSafeInteger(offset) &&
  offset >= 0 &&
  lengthBytes >= 0 &&
  offset + lengthBytes <= sizeBytes;

/** A range of a device as a device of its own. */
export function partOf(device: Device, startBytes: number, sizeBytes: number): Device {
  return {
    sizeBytes,
    read: (offset, lengthBytes, signal) => device.read(startBytes + offset, lengthBytes, signal),
  };
}
