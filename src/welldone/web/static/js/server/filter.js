// Filter of the recent requests.

/** @typedef {{model: string, status: string, text: string}} Filter "" matches all; status: 2, 4, 5 or "repaired" */

/**
 * @param {RecentRequest} request
 * @param {Filter} filter
 */
export function matches(request, { model, status, text }) {
  if (model !== "" && request.model !== model) return false;
  if (status === "repaired" && !request.repaired?.length) return false;
  if (/^\d$/.test(status) && !String(request.status).startsWith(status)) return false;
  return text === "" || searchText(request).includes(text.toLowerCase());
}

/** @param {RecentRequest} request */
function searchText(request) {
  const { method, path, model, principal, request_id: id, upstream, error, repaired = [], failed = [] } = request;
  return [method, path, request.status, model, principal, id, upstream, error, ...repaired, ...failed]
    .join(" ")
    .toLowerCase();
}
