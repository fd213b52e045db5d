-- Other neurons of the nearest variance, the control of digit_circuits: of each layer, the k
-- neurons whose standard deviation is the nearest to the mean of a digit's k top neurons. No top
-- neuron of any digit is among them. Patching a neuron that varies more changes more, whatever it
-- writes, and random neurons vary less than top neurons. Where the top neurons vary most, matched
-- neurons vary less, too: std and selected_std show by how much.
--
-- subject       VARCHAR   the model that predicts the first digit; the models for the other digits
--                         are the same network (digits in params.yaml)
-- digit         INTEGER   digit of the answer whose logit is measured, from 1, the first one
--                         written; its prompts give the standard deviations
-- of_digit      INTEGER   digit whose top neurons are matched, from 1
-- operator      VARCHAR   add, subtract, multiply or divide
-- half          INTEGER   half of the discovery prompts, 0 or 1, that selected the top neurons
-- k             INTEGER   number of top neurons of each layer, and of matched ones
-- layer         SMALLINT  late layer, from 0
-- neuron        INTEGER   matched neuron of the layer's MLP, from 0
-- std           DOUBLE    standard deviation of its activation over the operator's cells
-- selected_std  DOUBLE    mean standard deviation of the k top neurons
with
    digits as (from digit_models($first, $second, $third)),
    ks as (select unnest($operator_ks)::integer as k),
    tops as (
        select digit as of_digit, operator, half, k, layer, neuron
        from digit_neurons cross join ks where rank <= k
    ),
    deviations as (
        select digit, operator, layer, neuron, sqrt(variance) as std
        from neuron_variances join digits using (subject)
    ),
    sets as (
        select digit, of_digit, operator, half, k, layer, avg(std) as selected_std
        from tops join deviations using (operator, layer, neuron)
        group by all
        having count(*) = k
    ),
    others as (
        select digit, operator, k, layer, neuron, std
        from deviations cross join ks anti join tops using (operator, k, layer, neuron)
    )
select
    $first as subject, digit, of_digit, operator, half, k, layer, neuron, std, selected_std
from sets join others using (digit, operator, k, layer)
window
    layers as (partition by digit, of_digit, operator, half, k, layer),
    nearest as (layers order by abs(std - selected_std), neuron)
qualify row_number() over nearest <= k and count(*) over layers >= k
order by digit, of_digit, operator, half, k, layer, neuron
